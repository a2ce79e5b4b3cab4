"""Sources of several datasets under new names, of datasets that are only names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxdata.base.errors import InputError
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.opening import ConvertedDataset, JoinedDataset, source_meant


class Fixed(Dataset):
    """A dataset of documents in memory."""

    names: Any = ()
    tokenizer: Any = "a tokenizer"
    eod_id: Any = 0

    def __init__(self, url: str, *names: str) -> None:
        self.url, self.names = url, names
        self.opened: list[Any] = []

    def _open(self, name: str, generation: int | None) -> Any:
        self.opened.append((name, generation))
        return ArrayDocuments([[1, 0]], name=name)


def test_joined_datasets_have_the_splits_of_each_under_new_names() -> None:
    one, other = Fixed("u1", "train/a", "val/a", "train/b"), Fixed("u2", "train/c")
    joined = JoinedDataset({"x": (one, "a"), "y": (other, "c"), "z": (one, "b")}, "bytes")
    assert joined.url == "u1, u2"
    assert [*joined.names] == ["train/x", "val/x", "train/y", "train/z"]
    assert joined.splits == {"train": ["x", "y", "z"], "val": ["x"]}
    assert joined.source("val", "x", generation=3).name == "val/a"
    assert one.opened == [("val/a", 3)]
    assert joined.source("train", "y").name == "train/c"
    assert joined.eod_id == 0
    assert joined.tokenizer.kind == "bytes"
    other.eod_id = 1
    assert joined.eod_id is None
    with pytest.raises(InputError) as refused:
        _ = JoinedDataset({"x": (one, "a"), "y": (other, "c")}).tokenizer
    assert str(refused.value) == (
        "none of x, y names its tokenizer; set it, as `tokenizer: tiktoken:gpt2` in a config"
    )


def ours(name: str, *sources: str) -> Any:
    """A converted dataset whose tokenizer has this name."""
    found = object.__new__(ConvertedDataset)
    entry = SimpleNamespace(name=name, eod_id=0)
    found.url = f"u-{name}"
    found.manifest = SimpleNamespace(tokenizer=entry, sources=dict.fromkeys(sources))  # type: ignore[assignment]
    found.__dict__["tokenizer"] = f"tokenizer {name}"
    return found


def test_datasets_of_different_tokenizers_are_not_joined() -> None:
    foreign = Fixed("u", "train/a")
    sources = {"w": (foreign, "a"), "x": (ours("t1"), "a"), "y": (ours("t1"), "a")}
    assert JoinedDataset(sources, "bytes").tokenizer == "tokenizer t1"
    with pytest.raises(InputError) as refused:
        JoinedDataset(sources | {"z": (ours("t2"), "a")})
    assert str(refused.value) == (
        "sources 'x' and 'z' were made with different tokenizers, 't1' and 't2': their ids mean "
        "different texts; convert one of them again"
    )


def test_the_source_that_a_config_means_is_named_alone_or_the_only_one() -> None:
    one, two = Fixed("u1", "train/a", "val/a"), Fixed("u2", "train/b", "train/a")
    assert source_meant(one, "x") == source_meant(two, "a") == source_meant(two, "x", "a") == "a"
    for dataset, source, wanted, known in (
        (two, None, "x", "a, b"), (one, "c", "c", "a"), (Fixed("u3"), None, "x", "none"),
    ):  # fmt: skip
        with pytest.raises(InputError) as refused:
            source_meant(dataset, "x", source)
        assert str(refused.value) == (
            f"{dataset.url} has no source {wanted!r}, only {known}; choose one: x: {{dataset: "
            f"{dataset.url}, source: …}}"
        )
