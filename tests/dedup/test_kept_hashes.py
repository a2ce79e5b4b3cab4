"""Hashes that a conversion keeps: the views made of them are those made of the decoded text."""

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from jaxdata.base.errors import InputError
from jaxdata.dataset.manifest import ViewEntry, read_manifest
from jaxdata.dataset.opening import open_dataset
from jaxdata.dataset.verify import verify
from jaxdata.dedup.members import MemberTexts
from jaxdata.storage import open_store
from jaxdata.tokenizers import load
from tests.converter.here import column, objects, records, run_here, write_lines
from tests.dedup.planted import command, dropped, find, made, prose

SHARED = prose(1)
NEAR = SHARED + " And this is the end."
SPACED = SHARED.replace(". ", ".\n\n ")
WEB = [SHARED, prose(2), SPACED, NEAR, prose(3, 2), prose(2), "", "?!", "日本語の文章です。", ""]
WIKI = [NEAR, prose(4), SHARED.upper(), prose(3, 2), "日本語の文章です。"]


def views(dataset: Path, name: str) -> dict[str, ViewEntry]:
    """What the manifest says of a view, by source: with a checksum of each of its columns."""
    sources = read_manifest(open_store(dataset)).sources.items()
    return {source: entry.views[name] for source, entry in sources if name in entry.views}


def unread() -> Any:
    """While it is entered, no text of a source can be read."""
    inner = MemberTexts.texts

    def texts(self: MemberTexts, documents: Any) -> list[str]:
        assert not self.sides, "text is read"
        return inner(self, documents)

    return mock.patch.object(MemberTexts, "texts", texts)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same sources with hashes and without."""
    sources = {"train/web": WEB, "train/wiki": WIKI, "val/web": [NEAR, prose(9)]}
    folder = tmp_path_factory.mktemp("both")
    return made(folder / "kept", sources, minhash=True), made(folder / "plain", sources)


SEARCHES: list[Any] = [
    ({"near": False}, ["train/web", "train/wiki"]),
    ({"bands": 20, "threshold": 0.5}, []),
    ({"documents": "lower"}, ["train/web", "train/wiki"]),
    (
        {"sources": ["wiki", "web"], "against": ["val", "bench.jsonl"]},
        ["train/wiki", "train/web", "val/web"],
    ),
]


@pytest.mark.parametrize(("options", "hashed"), SEARCHES, ids=str)
def test_a_search_finds_the_same_with_them(
    both: tuple[Path, Path], tmp_path: Path, options: dict[str, Any], hashed: list[str]
) -> None:
    against = [str(tmp_path / each) if "." in each else each for each in options.get("against", ())]
    write_lines(tmp_path / "bench.jsonl", records(" ".join(prose(4).split()[20:50])))
    if "documents" in options:
        for data in both:
            find(data, name="lower", near=False, prefer="first")
    reports = [find(data, **options | {"against": against}) for data in both]
    kept, plain = (views(data, "d1") for data in both)
    assert kept == plain
    assert kept["train/web"].account.dropped
    assert [report.hashed_before for report in reports] == [hashed, []]


def test_no_text_is_read_to_hash(both: tuple[Path, Path]) -> None:
    with unread():
        said = find(both[0], threshold=0).summary()
        assert said.endswith("; hashed when converted: train/web, train/wiki")
        with pytest.raises(AssertionError, match="text is read"):
            find(both[1], threshold=0)
        with pytest.raises(AssertionError, match="text is read"):
            find(both[0])  # pairs are compared
    assert "; hashed when converted: train/web" in find(both[0]).summary(), "and compared"
    assert "hashed" not in find(both[1], threshold=0).summary()
    with mock.patch("jaxdata.dedup.members.HASHING", "version 2, Unicode 15.0.0"):
        assert find(both[0], threshold=0).hashed_before == [], "of another version"


@pytest.mark.parametrize("task", ["dpo", "fim", "lm"])
def test_other_tasks(tmp_path: Path, task: str) -> None:
    """What they store is not their text alone: tokens are decoded, as a search does."""
    pairs = [(prose(5), prose(6)), (prose(5), prose(7)), (prose(5), prose(6) + " "), (NEAR, NEAR)]
    keys = ("prompt", "chosen", "rejected")
    rows = [dict(zip(keys, (*pair, prose(8)), strict=True)) for pair in (*pairs, pairs[1])]
    source = write_lines(tmp_path / "a.jsonl", objects(*rows))
    options: dict[str, Any] = {
        "dpo": {"separator": "\n"},
        "fim": {"text_key": "chosen", "fim_prefix": 1, "fim_middle": 2, "fim_suffix": 3},
        "lm": {"text_key": "prompt,chosen", "tokenizer": load("bytes", bos=7), "bos": True},
    }[task]
    for name, hashed in (("one", {"exact_hash": "whitespace", "minhash": True}), ("two", {})):
        run_here(source, tmp_path / name, task=task, **options, **hashed)
        find(tmp_path / name)
    assert views(tmp_path / "one", "d1") == views(tmp_path / "two", "d1")
    assert all(made.account.dropped for made in views(tmp_path / "one", "d1").values())


def test_appended_they_grow(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "a.jsonl", records(*WEB))
    second = write_lines(tmp_path / "b.jsonl", records(*WIKI))
    kept: dict[str, Any] = {"exact_hash": "whitespace", "minhash": True}
    run_here([first, second], tmp_path / "at once", **kept)
    for files in ([first], [first, second]):
        run_here(files, tmp_path / "d", append=True, **kept)
    for name in ("exact_hash", "band_hash"):
        assert np.array_equal(column(tmp_path / "d", name), column(tmp_path / "at once", name))
    assert verify(tmp_path / "d").whole
    more = write_lines(tmp_path / "c.jsonl", records("more"))
    says = r"--append: .* different settings: exact_hash was 'white.*; --dedup and --minhash keep "
    with pytest.raises(InputError, match=says):
        run_here(more, tmp_path / "d", append=True)


def convert(*options: str | Path) -> str:
    """What `jaxdata convert --dedup` prints."""
    with unread():
        return command("convert", *options, "--source", "web", "--tokenizer", "bytes")


def test_the_command_says_what_it_left_out_as_a_search_of_the_text_would(tmp_path: Path) -> None:
    lines, data = write_lines(tmp_path / "a.jsonl", records(*WEB, *WIKI)), tmp_path / "d"
    for again in (False, True):
        said = convert(lines, "--output", data, "--dedup", "exact:letters")
        assert ("already complete" in said) == again
        assert "\ntrain/web\n    kept 8 of 15 documents, " in said
        assert "\nto train on it: documents: exact in a config, or --documents exact\n" in said
    run_here(lines, tmp_path / "two")
    find(tmp_path / "two", name="exact", sources=["web"], near=False, exact="letters")
    assert views(data, "exact") == views(tmp_path / "two", "exact")


def test_copies_in_other_splits_are_left_out_too(tmp_path: Path) -> None:
    texts = [prose(seed, 1) for seed in range(30)]
    spaced = [text.replace(" ", "  ") for text in texts]
    lines = write_lines(tmp_path / "a.jsonl", records(*texts, *spaced))
    splits = ("--split-ratio", "train=50,val=50")
    convert(lines, "--output", tmp_path / "d", *splits, "--dedup", "exact")
    opened = open_dataset(tmp_path / "d")
    kept, held = opened.source("train", "web", documents="exact"), opened.source("val", "web")
    words = [[opened.decode(doc["tokens"]).split() for doc in docs] for docs in (kept, held)]
    assert words[0]
    assert not [text for text in words[0] if text in words[1]]
    reasons = {fate[0] for fate in dropped(tmp_path / "d", "train/web", "exact").values()}
    assert reasons == {"exact copy", "exact copy in val"}


def test_the_hashes_never_change(both: tuple[Path, Path]) -> None:
    """Kept ones are compared with those of later versions, unless `hashing.VERSION` is raised."""
    exact, bands = (column(both[0], name) for name in ("exact_hash", "band_hash"))
    found = [int(each) for each in (*exact[:2], exact[-1], bands[0], bands[13])]
    assert found[:3] == [0x49DFA5986C9FAD94, 0xFD6AED593F98A31A, 0x7076A68E75884D4E]
    assert found[3:] == [0x805153648EDF29F9, 0x46CF992A1274DD4E]
