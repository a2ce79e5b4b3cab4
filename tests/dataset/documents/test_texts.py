"""The texts of documents, of every kind of them: those of the tokens that are read, or an error."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.dataset.opening import JoinedDataset
from jaxdata.testing import write_dataset
from tests.dataset.documents.test_foreign import write_megatron

TEXTS = ["a dog", "", "on\n\x1b[31m two lines <b>", "längst" * 40, "five"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("texts") / "d"
    write_dataset(folder, {"train/web": [[*text.encode(), 0] for text in TEXTS]})
    return jaxdata.open_dataset(folder)


def megatron(folder: Path, tokenizer: str | None = "bytes") -> Any:
    """The same documents as another tool has them, with the EOD of its tokenizer."""
    tokens = [np.array([*text.encode(), 256]) for text in TEXTS]
    return jaxdata.open_dataset(write_megatron(folder / "old", tokens), tokenizer=tokenizer)


KINDS: dict[str, Callable[[Any, Path], Any]] = {
    "converted": lambda d, _: d.source("train", "web"),
    "another tool's": lambda d, folder: megatron(folder).source("train", "old"),
    "its sequences": lambda d, folder: megatron(folder).source("train", "old").sequences,
    "joined, of ours": lambda d, folder: JoinedDataset(
        {"ours": (d, "web"), "x": (megatron(folder, None), "old")}
    ).source("train", "x"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_documents_have_their_texts(dataset: Any, tmp_path: Path, kind: str) -> None:
    docs = KINDS[kind](dataset, tmp_path)
    assert [docs.text(number) for number in range(len(docs))] == TEXTS
    assert (docs.text(-1), docs.text(np.int64(0))) == ("five", "a dog")
    assert docs.head(2) == ["a dog", ""]
    with pytest.raises(IndexError, match="no document 5: 5 are numbered from 0"):
        docs.text(5)


def test_a_head_is_lines_in_a_shell_and_a_table_in_a_notebook(dataset: Any) -> None:
    head = dataset.source("train", "web").head()
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
    assert r"<td>on\n\x1b[31m two lines &lt;b&gt;</td>" in head._repr_html_()
    assert repr(dataset["web"].head(-2)) == "train/web: 5 documents"


def test_without_a_tokenizer_texts_are_refused(dataset: Any, tmp_path: Path) -> None:
    docs = jaxdata.ArrayDocuments([[1, 2, 0]])
    copied = pickle.loads(pickle.dumps(dataset.source("train", "web")))
    for unknown in (docs, copied):
        with pytest.raises(InputError) as refused:
            unknown.text(0)
        assert str(refused.value).startswith(f"{unknown.name}: the tokenizer of these documents is")
    with pytest.raises(InputError, match="names no tokenizer; to decode, give it"):
        megatron(tmp_path, None).source("train", "old").head()
