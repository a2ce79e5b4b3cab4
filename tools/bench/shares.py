"""How far do the trained tokens of a mixture drift from its weights, within an epoch?

Two sources of skewed lengths, mixed 7 to 3; the largest difference after any row between what a
source trained and its share, in average rows of it. Only lengths are read. The count of rows stays
within two of its share whatever the strategy.
"""

from collections.abc import Callable

import numpy as np
from harness import Report, arguments, machine, parse
from made_documents import MadeDocuments
from numpy.typing import NDArray

import jaxdata
from jaxdata.rows.map_datasets import PackedDataset
from jaxdata.rows.packing.planner import targets_in

SEQ_LEN, BLOCK_BYTES, DOCUMENTS = 512, 2**22, 30_000
WEIGHTS = {"a": 0.7, "b": 0.3}
PACKS = [
    {"strategy": "crop"},
    {"strategy": "concat"},
    {"strategy": "best_fit"},
    {"strategy": "best_fit", "overlap": SEQ_LEN // 4},
    {"strategy": "pad"},
    {"strategy": "pad", "overlap": SEQ_LEN // 4},
]
Lengths = Callable[[np.random.Generator, int], NDArray[np.floating]]
SKEWED: dict[str, tuple[Lengths, Lengths]] = {
    "log-normal, sigma 1": (lambda g, n: g.lognormal(5, 1, n), lambda g, n: g.lognormal(4, 1, n)),
    "log-normal, sigma 2": (lambda g, n: g.lognormal(5, 2, n), lambda g, n: g.lognormal(3, 2, n)),
    "20 or 5,000 tokens": (
        lambda g, n: np.where(g.random(n) < 0.9, 20.0, 5_000.0),
        lambda g, n: g.lognormal(5, 1, n),
    ),
    "0.6 of a row, or a row": (
        lambda g, n: np.where(g.random(n) < 0.5, 0.6 * SEQ_LEN + 1, SEQ_LEN + 1.0),
        lambda g, n: np.where(g.random(n) < 0.1, 30.0, SEQ_LEN + 1.0),
    ),
}


def trained(rows: PackedDataset) -> NDArray[np.int64]:
    """Trained tokens of each row of an epoch."""
    table, numbers = rows.table, np.arange(len(rows))
    found = table.segments(numbers)
    return np.bincount(found.row, targets_in(table.documents[0], found), len(rows)).astype(np.int64)


def drift(lengths: tuple[Lengths, Lengths], documents: int, **pack: object) -> float:
    """The largest drift of either source, in its average rows."""
    chance, rows = np.random.default_rng(0), {}
    for name, draw in zip(WEIGHTS, lengths, strict=True):
        drawn = draw(chance, documents).clip(1, 200_000).astype(np.uint32)
        docs = MadeDocuments(drawn, name=name)
        rows[name] = jaxdata.pack(docs, seq_len=SEQ_LEN, block_bytes=BLOCK_BYTES, **pack)
    mixed = jaxdata.mix(rows, weights=WEIGHTS)
    _, source, rank = mixed.table.select(np.arange(len(mixed)))
    tokens = np.zeros((len(mixed), len(rows)))
    for number, own in enumerate(map(trained, rows.values())):
        mine = source == number
        tokens[mine, number] = own[rank[mine]]
    tokens = tokens.cumsum(axis=0)
    share = np.array([*WEIGHTS.values()])
    average = [each.plan.trained_tokens / len(each) for each in rows.values()]
    off = np.abs(tokens - share * tokens.sum(axis=1, keepdims=True)) / average
    return float(off.max())


def main() -> None:
    """Measure every strategy on all lengths."""
    given = parse(arguments(__doc__ or ""))
    documents = DOCUMENTS // 20 if given.quick else DOCUMENTS
    facts = machine() | {"documents": documents, "seq_len": SEQ_LEN, "block bytes": BLOCK_BYTES}
    report = Report("shares", "Drift of shares of tokens", "rows", better="less", facts=facts)
    for pack in PACKS:
        found = [drift(lengths, documents, **pack) for lengths in SKEWED.values()]
        name = f"{pack['strategy']}{', overlap' * ('overlap' in pack)}"
        report.add(
            name, *found, note=", ".join(f"{k} {v:.1f}" for k, v in zip(SKEWED, found, strict=True))
        )
    report.show(given.json)


if __name__ == "__main__":
    main()
