"""SentencePiece BPE: the library alone, and words from a table, in megabytes a second.

Each batch of documents is encoded by both in turn, so that a noisy neighbour slows both alike, and
their ids are compared. A pass begins with an empty table. Figures are of processor time, all
threads together.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from corpus import shared_data
from harness import Line, Report, arguments, machine, parse

from jaxdata import tokenizers
from jaxdata.converter import texts
from jaxdata.tokenizers.encoders.words import WordsEncoder
from jaxdata.tokenizers.sentencepiece import SentencePieceTokenizer

FILES = ("wiki", "web", "books", "short", "code-0", "code-1", "multilingual")
CHARACTERS, DOCUMENTS = 2**20, 1024  # of a batch, as the converter makes them
Encode = Callable[[Sequence[str]], list[np.ndarray]]


def corpora(quick: bool) -> dict[str, list[str]]:
    """Documents by name: the real ones, or a few made lines where there are none."""
    shared = shared_data()
    if shared is None or quick:
        words = ["the", "quick", "brown", "fox,", "jumps", "over", "a", "lazy", "dog."]
        return {"made": [" ".join(words[k % 9 :] * (1 + k % 40)) for k in range(500)]}
    found = {name: sorted(shared.glob(f"{name}.*"))[0] for name in FILES}
    return {name: list(texts(file)) for name, file in found.items()}


def model(folder: Path, documents: dict[str, list[str]], quick: bool) -> bytes:
    """Mistral's model; one trained on the made lines where there is none."""
    shared = shared_data()
    if shared is not None and not quick:
        return (shared / "tokenizers/mistral/tokenizer.mistral-v1.model").read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizers.train(documents["made"], folder / "made.model", vocab_size=290)
    return (folder / "made.model").read_bytes()


def batches(documents: Sequence[str]) -> Iterator[list[str]]:
    """Documents as many at a time as the converter encodes."""
    some: list[str] = []
    for text in documents:
        some.append(text)
        if len(some) == DOCUMENTS or sum(map(len, some)) >= CHARACTERS:
            yield some
            some = []
    yield some


def compared(content: bytes, documents: Sequence[str]) -> tuple[float, float]:
    """Processor seconds of the library, and of ours."""
    tokenizer = SentencePieceTokenizer({"tokenizer.model": content}, name="m")
    seconds = [0.0, 0.0]
    ways: tuple[Encode, Encode] = tokenizer.encode, WordsEncoder(tokenizer).encode
    for batch in batches(documents):
        found = []
        for number, encode in enumerate(ways):
            begin = time.process_time()
            found.append(encode(batch))
            seconds[number] += time.process_time() - begin
        assert all(map(np.array_equal, *found))
    return seconds[0], seconds[1]


def measure(given: argparse.Namespace) -> Report:
    """All corpora, round after round."""
    documents = corpora(given.quick)
    content = model(given.data, documents, given.quick)
    sizes = {
        name: sum(len(text.encode()) for text in some) / 1e6 for name, some in documents.items()
    }
    report = Report("words", "SentencePiece BPE", "MB/s of processor time")
    report.facts = machine("sentencepiece") | {"megabytes": round(sum(sizes.values()), 1)}
    rounds = range(min(given.rounds, 3))
    seconds = {name: [compared(content, documents[name]) for _ in rounds] for name in documents}
    seconds["all"] = [
        tuple(map(sum, zip(*each, strict=True))) for each in zip(*seconds.values(), strict=True)
    ]
    sizes["all"] = sum(sizes.values())
    for name, taken in seconds.items():
        library = [sizes[name] / one for one, _ in taken]
        ours = [sizes[name] / other for _, other in taken]
        ratios = [b / a for a, b in zip(library, ours, strict=True)]
        report.lines.append(Line(f"{name}: library", library))
        report.lines.append(Line(f"{name}: words", ours, f"{name}: library", ratios))
    return report


def main() -> None:
    """Compare."""
    given = parse(arguments(__doc__ or ""))
    measure(given).show(given.json)


if __name__ == "__main__":
    main()
