"""How well are documents shuffled: `best_fit`, `crop`, `concat`, and whole shards with a buffer?

The figures are those of `jaxdata.testing.shuffle_quality`, of real plans; rounds are seeds.
"length" and "number" are variances of means of batches over those of random deals of the same
documents: of log lengths, and of places in the corpus; "next" is the correlation of such places
with those of the next batch. "equal" are neighbours inside rows of
equal length, in times as often as at random; "kept" are neighbours in the corpus, too; "in row" is
the correlation of lengths with places in rows.

Beside them streaming loaders, whose documents are laid end to end into rows. "shards and a buffer"
(Hugging Face, LitData): 32 shards in random order, of whose stream a buffer as large as one of them
is drawn from at random. "py1e" (MosaicML): shards of 64 MiB in random order, each spread evenly
over 2^18 documents around its place, as by default on 16 nodes or more.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np
from corpus import lengths_of, lengths_of_text
from harness import Report, arguments, machine, parse
from made_documents import MadeDocuments
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import jaxdata
from jaxdata.rows.map_datasets import PackedDataset
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.testing import shuffle_quality
from jaxdata.testing.shuffle import Figure, measured, placements

SEQ_LEN, SHARDS = 2048, 32
SPREAD, SPREAD_SHARD_TOKENS = 2**18, 2**25
REAL = {"short": 16, "wiki": 16, "web": 16, "code": 16}
"""corpora of real text, and rows of a batch: few, so that there are many batches"""
MANY = 8_000_000
FIGURES = {
    "length": ("variance of batches", "length"),
    "number": ("variance of batches", "number"),
    "next": ("next batch", "number"),
    "equal": ("equal neighbours", "length"),
    "kept %": ("kept neighbours", "number"),
    "in row": ("place in the row", "length"),
}
"""column -> a figure of `shuffle_quality`"""
Lengths = NDArray[np.int64]
Found = dict[str, float]
Way = Callable[[Lengths, int, int], Found]


class Case(NamedTuple):
    """Documents to shuffle, and the rows of a batch."""

    name: str
    lengths: Lengths
    batch: int
    rounds: int


def packed(strategy: str) -> Way:
    """The figures of rows that `jaxdata.pack` makes."""

    def work(lengths: Lengths, batch: int, seed: int) -> Found:
        docs = MadeDocuments(lengths.astype(np.uint32))
        rows = jaxdata.pack(docs, seq_len=SEQ_LEN, strategy=strategy, seed=seed)
        (found,) = shuffle_quality(rows, batch_size=batch, hosts=1, seed=seed)
        return chosen(found.figures)

    return work


def streamed(deal: Callable[[Lengths, np.random.Generator], Lengths]) -> Way:
    """The figures of documents that come in another order, laid end to end."""

    def work(lengths: Lengths, batch: int, seed: int) -> Found:
        chance = np.random.default_rng(seed)
        order = deal(lengths, chance)
        docs = MadeDocuments(lengths[order].astype(np.uint32))
        settings = PackSettings.checked(seq_len=SEQ_LEN, strategy="concat", shuffle=False)
        ((_, placed),) = placements(PackedDataset(PackedRows(docs, settings)).table, batch, 2**20)
        placed = replace(placed, document=order[placed.document])
        deals = [placed.dealt(chance) for _ in range(8)]
        return chosen(measured(placed, 1, deals))

    return work


def shards_and_a_buffer(lengths: Lengths, chance: np.random.Generator) -> Lengths:
    """Whole shards, drawn from through a buffer of one."""
    shards = np.array_split(np.arange(len(lengths)), SHARDS)
    stream = np.concatenate([shards[number] for number in chance.permutation(SHARDS)])
    return drawn(stream, len(lengths) // SHARDS, chance)


def py1e(lengths: Lengths, chance: np.random.Generator) -> Lengths:
    """Shards of which each document is put anywhere in a range around its shard's place."""
    ends = np.flatnonzero(np.diff(np.cumsum(lengths) // SPREAD_SHARD_TOKENS)) + 1
    shards = np.split(np.arange(len(lengths)), ends)
    shards = [shards[number] for number in chance.permutation(len(shards))]
    counts = np.array([*map(len, shards)])
    middle, reach = np.cumsum(counts) - counts / 2, np.maximum(counts, SPREAD) / 2
    least, most = np.maximum(middle - reach, 0), np.minimum(middle + reach, len(lengths))
    places = chance.uniform(np.repeat(least, counts), np.repeat(most, counts))
    found: Lengths = np.concatenate(shards)[np.argsort(places)]
    return found


def drawn(stream: Lengths, size: int, chance: np.random.Generator) -> Lengths:
    """A stream through a buffer of `size` documents: the next one takes the place of one drawn."""
    buffer, rest = stream[:size].tolist(), stream[size:].tolist()
    places = chance.integers(0, size, len(rest)).tolist()
    out = []
    for place, document in zip(places, rest, strict=True):
        out.append(buffer[place])
        buffer[place] = document
    return np.array(out + chance.permutation(buffer).tolist())


def chosen(figures: Iterable[Figure]) -> Found:
    """The figures that the table shows, where they were measured."""
    by_name = {(each.name, each.of): each for each in figures}
    found = {}
    for column, name in FIGURES.items():
        if (figure := by_name.get(name)) is None:
            continue
        unit = {"equal": max(figure.random, 1e-4), "kept %": 0.01}.get(column, 1)
        found[column] = figure.found / unit
    return found


WAYS: dict[str, Way] = {
    "best_fit": packed("best_fit"),
    "crop": packed("crop"),
    "concat": packed("concat"),
    "shards and a buffer": streamed(shards_and_a_buffer),
    "py1e": streamed(py1e),
}


def cases(quick: bool, rounds: int) -> Iterator[Case]:
    """Real text where there is some, and made lengths."""
    if quick:
        yield Case("log-normal", lengths_of(3_000), 8, rounds)
        return
    for name, batch in REAL.items():
        if (lengths := lengths_of_text(name)) is not None:
            yield Case(name, lengths, batch, rounds)
    yield Case("log-normal", lengths_of(65_536), 64, rounds)
    yield Case("log-normal, 8 million", lengths_of(MANY), 512, min(rounds, 2))


def table(found: dict[str, dict[str, list[float]]]) -> Table:
    """All figures: a line for each corpus and way, the median of the seeds."""
    shown = Table(title="Shuffle quality, median of the seeds")
    shown.add_column("", no_wrap=True)
    for column in FIGURES:
        shown.add_column(column, justify="right")
    for name, figures in found.items():
        cells = [f"{median(figures[c]):.3g}" if figures.get(c) else "" for c in FIGURES]
        shown.add_row(name, *cells)
    return shown


def main() -> None:
    """Measure every way on all corpora."""
    given = parse(arguments(__doc__ or ""))
    facts = machine() | {"seq_len": SEQ_LEN}
    found: dict[str, dict[str, list[float]]] = {}
    for case in cases(given.quick, given.rounds):
        for way, work in WAYS.items():
            if given.only and given.only not in f"{case.name}: {way}":
                continue
            figures = found.setdefault(f"{case.name}: {way}", {})
            for seed in range(case.rounds):
                for column, value in work(case.lengths, case.batch, seed).items():
                    figures.setdefault(column, []).append(value)
    if not given.json:
        Console(width=130).print(table(found))
        return
    for column in FIGURES:
        unit = (
            "per cent"
            if "%" in column
            else "correlation"
            if column in ("in row", "next")
            else "times"
        )
        report = Report("shuffle", f"Shuffle quality: {column}", unit, "less", facts=facts)
        for name, figures in found.items():
            if figures.get(column):
                report.add(name, *figures[column])
        report.show(as_json=True)


if __name__ == "__main__":
    main()
