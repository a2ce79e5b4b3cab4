"""How does each figure grow with documents, hosts and sources?

Lengths are made, not converted, and kept as an index column on disk; reading tokens is a stub that
gives zeros. So this is what planning, opening, seeking and laying rows out cost, without reads.
"""

import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from corpus import lengths_of
from harness import Report, arguments, machine, once, parse
from made_documents import MadeDocuments
from memory import usage
from numpy.typing import NDArray

import jaxdata
from jaxdata.storage import LocalStore, zarr

SEQ_LEN, BATCH = 2048, 64
HOSTS = (1, 8, 64, 512, 4096)
SOURCES = (1, 4, 16, 64, 256, 1024)
PIECE = 10**7
MS = 1e3


def index_of(folder: Path, documents: int) -> LocalStore:
    """A store with a column of made lengths, made where it is not there yet."""
    store = LocalStore(folder / f"lengths-{documents}")
    if store.read("made") is None:
        column = np.memmap(folder / "lengths.tmp", np.uint32, mode="w+", shape=(documents,))
        for number, first in enumerate(range(0, documents, PIECE)):
            column[first : first + PIECE] = lengths_of(min(PIECE, documents - first), number)
        zarr.write(store, "length", column)
        store.write("made", b"yes")
        (folder / "lengths.tmp").unlink()
    return store


def loader_of(rows: Any, batch_size: int = BATCH, shard: tuple[int, int] = (0, 1)) -> Any:
    """One thread, nothing made ahead."""
    return jaxdata.Loader(rows, batch_size=batch_size, shard=shard, prefetch=0)


def step_ms(loader: Any, steps: int) -> float:
    """Milliseconds of a step, the mean of some: several batches are prepared at once."""
    next(loader)
    return MS * once(lambda: [next(loader) for _ in range(steps)]) / steps


def with_documents(report: Report, folder: Path, counts: list[int], steps: int) -> None:
    """What grows with the number of documents, and what does not."""
    found: dict[str, list[tuple[int, float, str]]] = {}

    def note(figure: str, documents: int, value: float, remark: str = "") -> None:
        found.setdefault(figure, []).append((documents, value, remark))

    for documents in counts:
        store = index_of(folder, documents)
        store.delete("plans/")
        before = usage()["anonymous"]
        source = MadeDocuments.kept_in(store)
        planned = once(lambda source=source: pack(source))
        grown = usage()["anonymous"] - before
        each = f"{planned / documents * 1e9:.0f} ns a document"
        note("O(documents): planning, once", documents, MS * planned, each)
        size = sum(len(store.read(name) or b"") for name in store.list("plans/"))
        note("O(blocks): bytes of the kept plan", documents, size, "bytes, not ms")
        remark = f"bytes, not ms; {grown / documents:.2f} a document"
        note("allocated by opening and planning", documents, grown, remark)
        note(
            "open the lengths",
            documents,
            MS * once(lambda store=store: MadeDocuments.kept_in(store)),
        )
        source = MadeDocuments.kept_in(store)
        note("pack, plan kept", documents, MS * once(lambda source=source: pack(source)))
        source = MadeDocuments.kept_in(store)
        rows = pack(source)
        note("mix of one source", documents, MS * once(lambda rows=rows: mixture({"a": rows})))
        rows = pack(MadeDocuments.kept_in(store))
        loader = loader_of(rows)
        loader.seek(step=len(loader) // 2)
        note("seek to the middle, first batch", documents, MS * once(loader.__next__))
        note("a step of 64 rows", documents, step_ms(loader, steps))
    for figure, values in found.items():
        for documents, value, remark in values:
            report.add(f"{figure}: {documents:,}", value, note=remark)


def pack(documents: MadeDocuments) -> Any:
    """Rows of best fit."""
    return jaxdata.pack(documents, seq_len=SEQ_LEN)


def mixture(rows: dict[str, Any]) -> Any:
    """Equal shares, for as long as it takes."""
    phase = jaxdata.Phase(rows=10**6, weights=dict.fromkeys(rows, 1))
    return jaxdata.mix(rows, phases=[phase], epochs=dict.fromkeys(rows, 10**6))


def with_hosts(
    report: Report, folder: Path, documents: int, hosts: tuple[int, ...], steps: int
) -> None:
    """A step of 4,096 rows on the first, the middle and the last host of many."""
    rows = pack(MadeDocuments.kept_in(index_of(folder, documents)))
    for number in hosts:
        sampled = sorted({0, number // 2, number - 1})
        slowest, state = 0.0, b""
        for host in sampled:
            loader = loader_of(rows, max(hosts), (host, number))
            slowest = max(slowest, step_ms(loader, steps))
            state = repr(loader.get_state()).encode()
        remark = f"{max(hosts) // number} rows a host; state {len(state)} bytes"
        report.add(f"{number} hosts, a step of {max(hosts):,} rows", slowest, note=remark)


def with_sources(report: Report, sources: tuple[int, ...], documents: int, steps: int) -> None:
    """A mixture of many sources, each of the same few documents."""
    for number in sources:
        lengths: NDArray[Any] = lengths_of(documents).astype(np.uint32)
        before = usage()["anonymous"]
        rows = {f"s{k}": pack(MadeDocuments(lengths, name=f"train/s{k}")) for k in range(number)}
        made: list[Any] = []
        seconds = once(lambda rows=rows, made=made: made.append(mixture(rows)))
        report.add(f"{number} sources, mix", MS * seconds)
        loader = loader_of(made[0])
        report.add(f"{number} sources, first batch", MS * once(loader.__next__))
        held = usage()["anonymous"] - before
        step = step_ms(loader, steps)
        remark = f"state {len(repr(loader.get_state()))} bytes; {held / 1e6:.0f} MB allocated"
        report.add(f"{number} sources, a step of 64 rows", step, note=remark)


def main() -> None:
    """Measure each, from small to large."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--max-documents", type=int, help="10,000,000; quick: 20,000")
    given = parse(parser)
    most = given.max_documents or (20_000 if given.quick else 10**7)
    steps = 3 if given.quick else 48
    given.data.mkdir(parents=True, exist_ok=True)
    smallest = min(most, 10**5)
    counts = [10**k for k in range(5, 10) if 10**k <= most] or [smallest]
    hosts, sources = (HOSTS[:2], SOURCES[:3]) if given.quick else (HOSTS, SOURCES)
    each = 200 if given.quick else 2_000
    parts: list[tuple[str, Callable[[Report], None]]] = [
        ("documents", lambda report: with_documents(report, given.data, counts, steps)),
        ("hosts", lambda report: with_hosts(report, given.data, counts[-1], hosts, steps)),
        ("sources", lambda report: with_sources(report, sources, each, steps)),
    ]
    for name, part in parts:
        if given.only and given.only not in name:
            continue
        report = Report("scale", f"Growth with {name}, reads stubbed", "ms", "less")
        part(report)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        report.facts = machine() | {"peak RSS so far, MB": round(peak)}
        report.show(given.json)
    if given.quick:
        shutil.rmtree(given.data / f"lengths-{counts[-1]}", ignore_errors=True)


if __name__ == "__main__":
    main()
