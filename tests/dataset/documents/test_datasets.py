"""Sources by their names: of one dataset, of several as one, through views, as of a generation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from jaxdata.base.errors import InputError
from jaxdata.dataset import contract as datasets
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.dataset.opening import ConvertedDataset, JoinedDataset, source_meant


class Fixed(datasets.Dataset):
    """A dataset of documents in memory."""

    tokenizer: Any = "a tokenizer"

    def __init__(self, url: str, *names: str, eod_id: int = 0) -> None:
        self.url, self.names, self.eod_id = url, names, eod_id
        self.opened: list[Any] = []

    def _open(self, name: str, generation: int | None) -> Any:
        self.opened.append((name, generation))
        return ArrayDocuments([[1, 0]], name=name)


def test_a_source_is_read_through_the_view_that_is_asked_for_else_through_its_own() -> None:
    plain = Fixed("u", "train/a", "train/b", "val/b", "alone")
    viewed = plain.with_views({"train/a": "d1"})

    def read(docs: Any) -> Any:
        return (*docs, plain.opened.pop()) if isinstance(docs, tuple) else plain.opened.pop()

    with mock.patch.object(datasets, "kept_documents", lambda found, view: (found.name, view)):
        assert read(viewed.source("train", "a")) == ("train/a", "d1", ("train/a", None))
        assert read(viewed["a"]) == read(viewed["train/a"]), "of one split only"
        asked = viewed.source("train", "a", documents="d2", generation=2)
        assert read(asked) == ("train/a", "d2", ("train/a", 2))
        assert read(viewed["alone"]) == ("alone", None)
        assert read(plain["train/a"]) == ("train/a", None), "it stays as it was"
    assert plain.splits == {"alone": [""], "train": ["a", "b"], "val": ["b"]}
    assert [*plain] == ["alone", "train/a", "train/b", "val/b"]
    known = [name for name in ("a", "val/b", "val/a", "c", "alone") if name in plain]
    assert known == ["a", "val/b", "alone"]
    assert datasets.source_names(plain, "train") == ["a", "b"]
    for ask, message in (
        (lambda: datasets.source_names(plain, "test"), "no split 'test': the dataset has alone, t"),
        (lambda: plain["b"], "'b' names no split: give 'train/b' or 'val/b'"),
        (lambda: plain["train/c"], "no source 'train/c' in u: it has alone, train/a, .*did you"),
        (lambda: plain.source("train", "a", generation=0.0), "generation=0.0: expected a whole"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=message):
            ask()


def test_joined_datasets_have_the_splits_of_each_under_new_names() -> None:
    one, other = Fixed("u1", "train/a", "val/a", "train/b"), Fixed("u2", "train/c")
    joined = JoinedDataset({"x": (one, "a"), "y": (other, "c"), "z": (one, "b")}, "bytes")
    assert joined.url == "u1, u2"
    assert [*joined.names] == ["train/x", "val/x", "train/y", "train/z"]
    assert joined.source("val", "x", generation=3).name == "val/a"
    assert one.opened == [("val/a", 3)]
    assert (joined.eod_id, joined.tokenizer.kind) == (0, "bytes")
    unlike = JoinedDataset({"x": (one, "a"), "y": (Fixed("u3", "train/c", eod_id=1), "c")})
    assert unlike.eod_id is None
    with pytest.raises(InputError, match=r"^u1, u3 names no tokenizer; to decode, give it: "):
        _ = unlike.tokenizer


def ours(name: str) -> Any:
    """A converted dataset whose tokenizer has this name."""
    found: Any = object.__new__(ConvertedDataset)
    found.url, found.names, found.eod_id = f"u-{name}", ("train/a",), 0
    found.manifest = SimpleNamespace(tokenizer=SimpleNamespace(name=name))
    found.__dict__["tokenizer"] = f"tokenizer {name}"
    return found


def test_datasets_of_different_tokenizers_are_not_joined() -> None:
    first = ours("t1")
    sources = {"w": (Fixed("u", "train/a"), "a"), "x": (first, "a"), "y": (first, "a")}
    assert JoinedDataset(sources, "bytes").tokenizer == "tokenizer t1"
    with pytest.raises(
        InputError, match=r"sources 'x' and 'z' were made with different .*'t1' and"
    ):
        JoinedDataset(sources | {"z": (ours("t2"), "a")})


def test_the_source_that_a_config_means_is_named_alone_or_the_only_one() -> None:
    one, two = Fixed("u1", "train/a", "val/a"), Fixed("u2", "train/b", "train/a")
    assert source_meant(one, "x") == source_meant(two, "a") == source_meant(two, "x", "a") == "a"
    for dataset, source, wanted, known in (
        (two, None, "x", "a, b"), (one, "c", "c", "a"), (Fixed("u3"), None, "x", "none"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"has no source {wanted!r}, only {known}; choose one"):
            source_meant(dataset, "x", source)
