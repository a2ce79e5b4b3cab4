"""Conversion from end to end, against the bare tokenizer library on the same text.

Megabytes of text a second, for each family of tokenizers: the library alone; each encoder that can
stand in for it alone; whole conversions by the library and by each encoder. All take turns.
A conversion reads and decompresses files, checks every record, tokenises, writes shards and
publishes an index; bare libraries and encoders get the texts of memory and throw the tokens away.
All get the same number of processes, each with one thread. The time of a conversion includes
starting them; `--clock cpu` counts the processor time of all. `--fuzz N` compares ids instead: of
every document, and of N made strings.

Then the memory of a worker at its peak (all of it, shared pages too), on the books: documents of up
to 3.8 MB. `imports` is a worker that has its tokenizer, and nothing to do.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from typing import Any

from corpus import real_text, shared_data
from harness import Contestant, Report, arguments, chosen, compare, machine, now, parse

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "FASTOKENS_BPE_THREADS": "1"}  # as in workers

import numpy as np
from families import families

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.converter import convert, texts
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders.base import Encoder
from jaxdata.tokenizers.encoders.choice import ENCODERS, attach, choose, hard_texts

BATCH = 64
_encode: Callable[[list[str]], Any]


def specs(data: Path, quick: bool) -> dict[str, str]:
    """A tokenizer of each family, of the files beside the text; bytes alone where there are none.

    If `quick`, a library stands for the others.
    """
    folder = shared_data()
    found = families(folder / "tokenizers", data, quick) if folder else {"bytes": "bytes"}
    return {name: found[name] for name in found if not quick or name in ("gpt-2", "bytes")}


def encoders_of(spec: str, quick: bool) -> list[type[Encoder]]:
    """The encoders that pass their trial for a tokenizer."""
    if quick:  # a trial takes seconds
        return []
    tokenizer = tokenizers.load(spec)
    found = []
    for kind in ENCODERS:
        with suppress(InputError):
            choose(tokenizer, kind.name, text_bytes=0)  # type: ignore[arg-type]
            found.append(kind)
    return found


def library(spec: str, encoder: str | None = None) -> Callable[[list[str]], Any]:
    """The library's own call for a batch of texts, or that of an encoder."""
    name, _, file = spec.partition(":")
    if encoder:
        kind = next(kind for kind in ENCODERS if kind.name == encoder)
        return kind(tokenizers.load(spec)).encode
    if name == "sentencepiece":
        import sentencepiece

        return partial(sentencepiece.SentencePieceProcessor(model_file=file).encode, num_threads=1)
    if name == "hf":
        from tokenizers import Tokenizer as Library

        return Library.from_file(file).encode_batch_fast
    if name == "tiktoken":
        return partial(_tiktoken(file).encode_ordinary_batch, num_threads=1)
    return lambda batch: [text.encode() for text in batch]


def _tiktoken(file: str) -> Any:
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    # The pattern is that of the encoding our own tokenizer gives to this file.
    ours = tokenizers.load(f"tiktoken:{file}")
    pattern = json.loads(
        next(data for name, data in ours.files().items() if name.endswith(".json"))
    )["pattern"]
    return tiktoken.Encoding(
        "bench", pat_str=pattern, mergeable_ranks=load_tiktoken_bpe(file), special_tokens={}
    )


def _prepare(spec: str, encoder: str | None) -> None:
    global _encode
    _encode = library(spec, encoder)


def _work(batch: list[str]) -> int:
    _encode(batch)
    return len(batch)


def bare(
    spec: str, documents: list[str], processes: int, encoder: str | None = None
) -> Callable[[], float]:
    """Seconds of the library alone, or of an encoder."""
    batches = [documents[a : a + BATCH] for a in range(0, len(documents), BATCH)]
    if processes == 1:
        encode = library(spec, encoder)

        def alone() -> float:
            begin = spent()
            for batch in batches:
                encode(batch)
            return spent() - begin

        return alone
    context = get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_prepare, initargs=(spec, encoder))
    sum(pool.map(_work, [["warm"]] * processes * 4))

    def together() -> float:
        begin = now()
        sum(pool.map(_work, batches))
        return now() - begin

    return together


def spent() -> float:
    """Seconds on the clock that was chosen; processor time is that of all processes."""
    if machine()["clock"] == "wall":
        return now()
    return time.process_time() + sum(os.times()[2:4])


def ours(
    spec: str, files: list[Path], processes: int, encoder: str = "library"
) -> Callable[[], float]:
    """Seconds of a whole conversion into a new folder."""

    def work() -> float:
        folder = Path(tempfile.mkdtemp(prefix="jaxdata-bench-"))
        try:
            begin = spent()
            options: Any = {"source": "web", "workers": processes, "encoder": encoder}
            convert(files, output=folder, tokenizer=spec, **options)
            return spent() - begin
        finally:
            shutil.rmtree(folder)

    return work


def peak(spec: str, files: list[Path]) -> float:
    """Megabytes that the largest of two workers had at most."""
    seen: list[int] = []
    done = Event()
    others = set(_children())

    def watch() -> None:
        while not done.wait(0.01):
            seen.extend(_peak_of(pid) for pid in _children() if pid not in others)

    watcher = Thread(target=watch)
    watcher.start()
    try:
        ours(spec, files, 2)()
    finally:
        done.set()
        watcher.join()
    return max(seen) / 1e6


def _children() -> list[int]:
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(pid) for children in tasks for pid in children.read_text().split()]


def _peak_of(pid: int) -> int:
    """Bytes that were resident in a process at most; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def memory(given: argparse.Namespace) -> Report:
    """The peak of a worker for each tokenizer, on the books and on next to nothing."""
    report = Report("convert", "Memory of a worker at its peak", "MB", "less", facts=machine())
    little = sample(given.data, quick=True, everything=False)
    books = [file for file in real_text() if file.name.startswith("books")]
    rounds = range(min(given.rounds, 3))
    for name, spec in specs(given.data, given.quick).items():
        report.add(f"{name}: imports", *(peak(spec, little) for _ in rounds))
        if books and not given.quick:
            report.add(f"{name}: books", *(peak(spec, books) for _ in rounds))
    return report


def sample(folder: Path, quick: bool, everything: bool) -> list[Path]:
    """Files to convert: real ones, or a few made lines where there are none."""
    few = ("code", "short")
    found = [file for file in real_text() if everything or file.name.startswith(few)]
    if found and not quick:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "few.jsonl"
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
    lines = (" ".join(words[k % 9 :] * (1 + k % 40)) for k in range(200 if quick else 20_000))
    file.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return [file]


def repeated(files: list[Path], times: int, folder: Path) -> list[Path]:
    """Every file under several names."""
    if times == 1:
        return files
    links = [folder / f"{time}-{file.name}" for time in range(times) for file in files]
    folder.mkdir(parents=True, exist_ok=True)
    for link, file in zip(links, files * times, strict=True):
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    return links


def of_family(
    name: str,
    spec: str,
    kinds: list[type[Encoder]],
    documents: list[str],
    files: list[Path],
    processes: int,
) -> Iterator[Contestant]:
    """The library alone, encoders alone, and conversions by each."""
    alone = f"{name} alone, {processes}"
    yield Contestant(alone, bare(spec, documents, processes), threads=processes > 1)
    yield Contestant(f"convert with {name}, {processes}", ours(spec, files, processes), alone)
    for kind in kinds:
        by = f"{name} by {kind.name}, {processes}"
        work = bare(spec, documents, processes, kind.name)
        yield Contestant(by, work, alone, threads=processes > 1)
        yield Contestant(f"convert with {by}", ours(spec, files, processes, kind.name), alone)


def compare_ids(tokenizers_of: dict[str, str], documents: list[str], strings: int) -> None:
    """Print how many documents and fuzzed strings got other ids than the library's."""
    for name, spec in tokenizers_of.items():
        tokenizer = tokenizers.load(spec)
        guards = {}
        for kind in encoders_of(spec, quick=False):
            attach(tokenizer, choose(tokenizer, kind.name, text_bytes=0))  # type: ignore[arg-type]
            guards[kind.name] = tokenizer.guard
        fuzzed = [*hard_texts(tokenizer, strings)]
        for what, some in (("documents", documents), ("strings", fuzzed)):
            for encoder, (wrong, left) in _compared(tokenizer, guards, some).items():
                said = f"{wrong} of {len(some):,} {what} differ; {left:,} left to the library"
                print(f"{name} by {encoder}: {said}", flush=True)


def _compared(
    tokenizer: Tokenizer, guards: dict[str, Any], some: list[str]
) -> dict[str, tuple[int, int]]:
    """For each encoder the texts that differ, and those left to the library."""
    wrong = dict.fromkeys(guards, 0)
    for guard in guards.values():
        guard.begin()
    for first in range(0, len(some) if guards else 0, 256):
        batch = some[first : first + 256]
        theirs = tokenizer.encode_texts(batch, False)
        for name, guard in guards.items():
            pairs = zip(guard.encode(batch), theirs, strict=True)
            wrong[name] += sum(not np.array_equal(one, other) for one, other in pairs)
    return {name: (wrong[name], guards[name].counts["left"]) for name in guards}


def main() -> None:
    """Convert in turns."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--processes", type=int, nargs="*", help="numbers of processes (1 2)")
    parser.add_argument("--all", action="store_true", help="all the real text, not a quarter of it")
    parser.add_argument("--fuzz", type=int, help="compare ids: documents, and so many strings")
    parser.add_argument(
        "--times", type=int, default=1, help="every text so often: starting and ending weigh less"
    )
    given = parse(parser)
    files = repeated(sample(given.data, given.quick, given.all), given.times, given.data)
    documents = list(texts(files))
    os.environ.setdefault("JAXDATA_CACHE", str(given.data / "cache"))
    if given.fuzz is not None:
        compare_ids(specs(given.data, False), documents, given.fuzz)
        return
    size = sum(len(text.encode()) for text in documents)
    given.seconds = min(given.seconds, 0.01)
    contestants = []
    for processes in given.processes or ([1] if given.quick else [1, 2]):
        for name, spec in specs(given.data, given.quick).items():
            kinds = encoders_of(spec, given.quick)
            contestants += of_family(name, spec, kinds, documents, files, processes)
    facts = machine("sentencepiece", "tokenizers", "tiktoken")
    facts |= {"documents": len(documents), "megabytes": round(size / 1e6, 1)}
    report = Report("convert", "Conversion, by processes", "MB/s", facts=facts)
    picked = chosen(contestants, given.only)
    compare(report, picked, rounds=min(given.rounds, 3), seconds=given.seconds, timed=True)
    for line in report.lines:
        line.figures = [size / 1e6 / seconds for seconds in line.figures]
        line.ratios = [1 / ratio for ratio in line.ratios]
    report.show(given.json)
    sys.stdout.flush()
    if not given.only and Path("/proc/self/status").exists():
        memory(given).show(given.json)


if __name__ == "__main__":
    main()
