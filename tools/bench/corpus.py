"""The corpora that the benchmarks run on, made once and kept in a folder.

Made ones have log-normal lengths and random tokens, so that nothing in them helps anyone; the
real one is the text of ../shared/data where there is any.
"""

import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import zstandard
from numpy.typing import NDArray

from jaxdata.converter import convert
from jaxdata.testing import write_dataset

__all__ = ["Corpus", "lengths_of", "lengths_of_text", "made", "real", "real_text", "tokens_of"]

DOCUMENTS, QUICK_DOCUMENTS = 200_000, 3_000
SHARD_DOCUMENTS = 10_000
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Corpus:
    """A dataset, and the same tokens in one flat file."""

    path: Path
    sources: list[str]
    documents: int
    tokens: int

    @property
    def flat(self) -> NDArray[np.uint16]:
        """All tokens in the order of the documents, a memory map."""
        return np.memmap(self.path / "tokens.bin", np.uint16, mode="r")

    @property
    def shards(self) -> list[str]:
        """Paths of the ArrayRecord files."""
        return sorted(str(file) for file in self.path.rglob("*.array_record"))


def lengths_of(documents: int, seed: int = 0) -> NDArray[np.int64]:
    """Log-normal document lengths: mean of log 6, sigma 1, clipped to 8 … 20,000."""
    drawn = np.random.default_rng(seed).lognormal(6, 1, documents)
    return np.clip(drawn, 8, 20_000).astype(np.int64)


def lengths_of_text(name: str) -> NDArray[np.int64] | None:
    """Lengths of the documents of a real corpus, at four bytes a token; None where it is absent."""
    folder = shared_data()
    files = sorted(folder.glob(f"{name}*")) if folder else []
    texts = [text for file in files for text in _texts(file)]
    return np.array([len(text.encode()) // 4 + 2 for text in texts]) if texts else None


def _texts(file: Path) -> list[str]:
    if file.suffix == ".parquet":
        return pq.read_table(file)["text"].to_pylist()  # type: ignore[no-any-return]
    opened = gzip.open if file.suffix == ".gz" else zstandard.open
    with opened(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def tokens_of(lengths: NDArray[np.int64]) -> NDArray[np.uint16]:
    """Random tokens 1 … 65,535, the last of each document the EOD 0."""
    tokens = np.random.default_rng(1).integers(1, 65_536, int(lengths.sum()), np.uint16)
    tokens[np.cumsum(lengths) - 1] = 0
    return tokens


def made(
    folder: Path, *, quick: bool = False, sources: int = 1, shard_documents: int = SHARD_DOCUMENTS
) -> Corpus:
    """The log-normal corpus dealt to a number of sources, made where it is not there yet."""
    documents = QUICK_DOCUMENTS if quick else DOCUMENTS
    path = folder / f"lognormal-{documents}-{sources}-{shard_documents}"
    names = [f"s{number:04}" for number in range(sources)]
    if not (path / "made.json").exists():
        _make(path, documents, names, shard_documents)
    facts = json.loads((path / "made.json").read_text())
    return Corpus(path, names, facts["documents"], facts["tokens"])


def _make(path: Path, documents: int, names: list[str], shard_documents: int) -> None:
    lengths = lengths_of(documents)
    tokens = tokens_of(lengths)
    each = np.split(tokens, np.cumsum(lengths)[:-1])
    edges = np.linspace(0, documents, len(names) + 1).astype(int)
    content = {f"train/{name}": each[edges[k] : edges[k + 1]] for k, name in enumerate(names)}
    write_dataset(path, content, shard_documents=shard_documents)
    if len(names) == 1:
        tokens.tofile(path / "tokens.bin")
    facts = {"documents": documents, "tokens": len(tokens)}
    (path / "made.json").write_text(json.dumps(facts))


def shared_data() -> Path | None:
    """The folder of real text, beside the repository or where JAXDATA_TEST_DATA says."""
    folder = Path(os.environ.get("JAXDATA_TEST_DATA", ROOT.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


def real_text() -> list[Path]:
    """Files of real text with a tokenizer beside them; empty where there are none."""
    folder = shared_data()
    if folder is None:
        return []
    wanted = ("books.jsonl.gz", "short.jsonl.gz", "web.parquet", "code-*.jsonl.gz")
    return sorted(file for pattern in wanted for file in folder.glob(pattern))


def real(folder: Path, quick: bool = False) -> Corpus | None:
    """The real text as one source of SentencePiece tokens; None where there is no such text."""
    files = [file for file in real_text() if not quick or file.name.startswith("code-0")]
    text = shared_data()
    if not files or text is None:
        return None
    path = folder / ("real-quick" if quick else "real")
    if not (path / "made.json").exists():
        model = text / "tokenizers" / "sentencepiece" / "t5_cc_all.32000.100extra.model"
        report = convert(
            files, output=path, source="real", tokenizer=f"sentencepiece:{model}", text_key="text"
        )
        facts = {"documents": report.documents, "tokens": report.tokens}
        (path / "made.json").write_text(json.dumps(facts))
    facts = json.loads((path / "made.json").read_text())
    return Corpus(path, ["real"], facts["documents"], facts["tokens"])
