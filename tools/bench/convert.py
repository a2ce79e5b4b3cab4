"""Conversion from end to end, against the bare tokenizer library on the same text.

Ours reads and decompresses files, checks every record, tokenises, writes shards and publishes an
index; the bare library gets the texts of memory and throws the tokens away. Both get the same
number of processes, each with one thread. Our time includes starting them, its own does not.

Then the memory of a worker at its peak (all of it, shared pages too), on the books: documents of up
to 3.8 MB. `imports` is a worker that has its tokenizer, and nothing to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from typing import Any

from corpus import real_text, shared_data
from harness import Contestant, Report, arguments, chosen, compare, machine, now, parse

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxdata.converter import convert, texts

BATCH = 64
_encode: Callable[[list[str]], Any]


def specs() -> dict[str, str]:
    """A tokenizer of each library, of the files beside the text; bytes where there are none."""
    folder = shared_data()
    if folder is None:
        return {"bytes": "bytes"}
    files = folder / "tokenizers"
    return {
        "sentencepiece": f"sentencepiece:{files}/sentencepiece/t5_cc_all.32000.100extra.model",
        "tokenizers": f"hf:{files}/gpt2/tokenizer.json",
        "tiktoken": f"tiktoken:{files}/tiktoken/cl100k_base.tiktoken",
        "bytes": "bytes",
    }


def library(name: str, spec: str) -> Callable[[list[str]], Any]:
    """The library's own call for a batch of texts."""
    file = spec.partition(":")[2]
    if name == "sentencepiece":
        import sentencepiece

        return partial(sentencepiece.SentencePieceProcessor(model_file=file).encode, num_threads=1)
    if name == "tokenizers":
        import tokenizers

        return tokenizers.Tokenizer.from_file(file).encode_batch_fast
    if name == "tiktoken":
        return partial(_tiktoken(file).encode_ordinary_batch, num_threads=1)
    return lambda batch: [text.encode() for text in batch]


def _tiktoken(file: str) -> Any:
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    # The pattern is that of the encoding our own tokenizer gives to this file.
    from jaxdata import tokenizers

    ours = tokenizers.load(f"tiktoken:{file}")
    pattern = json.loads(
        next(data for name, data in ours.files().items() if name.endswith(".json"))
    )["pattern"]
    return tiktoken.Encoding(
        "bench", pat_str=pattern, mergeable_ranks=load_tiktoken_bpe(file), special_tokens={}
    )


def _prepare(name: str, spec: str) -> None:
    global _encode
    _encode = library(name, spec)


def _work(batch: list[str]) -> int:
    _encode(batch)
    return len(batch)


def bare(name: str, spec: str, documents: list[str], processes: int) -> Callable[[], float]:
    """Seconds of the library alone."""
    batches = [documents[a : a + BATCH] for a in range(0, len(documents), BATCH)]
    if processes == 1:
        encode = library(name, spec)

        def alone() -> float:
            begin = now()
            for batch in batches:
                encode(batch)
            return now() - begin

        return alone
    context = get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, initializer=_prepare, initargs=(name, spec))
    sum(pool.map(_work, [["warm"]] * processes * 4))

    def together() -> float:
        begin = now()
        sum(pool.map(_work, batches))
        return now() - begin

    return together


def ours(spec: str, files: list[Path], processes: int) -> Callable[[], float]:
    """Seconds of a whole conversion into a new folder."""

    def work() -> float:
        folder = Path(tempfile.mkdtemp(prefix="jaxdata-bench-"))
        try:
            begin = now()
            convert(files, output=folder, source="web", tokenizer=spec, workers=processes)
            return now() - begin
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
    for name, spec in specs().items():
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


def main() -> None:
    """Convert in turns."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--processes", type=int, nargs="*", help="numbers of processes (1 2)")
    parser.add_argument("--all", action="store_true", help="all the real text, not a quarter of it")
    parser.add_argument(
        "--times", type=int, default=1, help="every text so often: starting and ending weigh less"
    )
    given = parse(parser)
    files = repeated(sample(given.data, given.quick, given.all), given.times, given.data)
    documents = list(texts(files))
    size = sum(len(text.encode()) for text in documents)
    given.seconds = min(given.seconds, 0.01)
    contestants = []
    for processes in given.processes or ([1] if given.quick else [1, 2]):
        for name, spec in specs().items():
            alone, whole = f"{name} alone, {processes}", f"convert with {name}, {processes}"
            threads = processes > 1
            work = bare(name, spec, documents, processes)
            contestants.append(Contestant(alone, work, threads=threads))
            contestants.append(Contestant(whole, ours(spec, files, processes), alone))
    facts = machine("sentencepiece", "tokenizers", "tiktoken")
    facts |= {"documents": len(documents), "megabytes": round(size / 1e6, 1)}
    report = Report("convert", "Conversion, by processes", "seconds", "less", facts=facts)
    picked = chosen(contestants, given.only)
    compare(report, picked, rounds=min(given.rounds, 3), seconds=given.seconds, timed=True)
    report.show(given.json)
    if not given.only and Path("/proc/self/status").exists():
        memory(given).show(given.json)


if __name__ == "__main__":
    main()
