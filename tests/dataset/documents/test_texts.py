"""The texts of documents, of every kind of them: those of the tokens that are read, or an error."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.dataset.opening import JoinedDataset
from jaxdata.testing import write_dataset
from tests.dataset.documents.test_foreign import write_megatron

TEXTS = ["a dog", "", "on\n\x1b[31m two lines <b>", "längst" * 40, "five"]


def test_documents_of_every_kind_have_their_texts(tmp_path: Path) -> None:
    ours = write_dataset(tmp_path / "d", {"train/web": [[*text.encode(), 0] for text in TEXTS]})
    # The same documents as another tool has them, with the EOD of its tokenizer.
    spec = write_megatron(tmp_path / "old", [np.array([*text.encode(), 256]) for text in TEXTS])
    plain, theirs = jaxdata.open_dataset(spec), jaxdata.open_dataset(spec, tokenizer="bytes")
    joined = JoinedDataset({"ours": (ours, "web"), "x": (plain, "old")})
    sources = [ours["web"], theirs["old"], theirs["old"].sequences, joined.source("train", "x")]
    for docs in sources:
        assert [docs.text(number) for number in range(len(docs))] == TEXTS
        assert (docs.text(-1), docs.text(np.int64(0))) == ("five", "a dog")  # type: ignore[arg-type]
        with pytest.raises(IndexError, match="no document 5: 5 are numbered from 0"):
            docs.text(5)
    head = ours["web"].head()
    assert head[3] == ("längst" * 17)[:99] + "…"
    assert repr(head) == "\n".join(
        [
            "train/web: 5 documents",
            "0    6 tokens  a dog",
            "1     1 token  ",
            r"2   23 tokens  on\n\x1b[31m two lines <b>",
            f"3  281 tokens  {head[3]}",
            "4    5 tokens  five",
        ]
    )
    assert ours["web"].head(-2) == []
    copied = pickle.loads(pickle.dumps(ours["web"]))
    for unknown in (jaxdata.ArrayDocuments([[1, 2, 0]]), copied):
        with pytest.raises(InputError, match=f"^{unknown.name}: the tokenizer of these documents"):
            unknown.text(0)
    with pytest.raises(InputError, match="names no tokenizer; to decode, give it"):
        plain["old"].head()
