"""Sources by their names, one dataset or several; where their bytes lie on disk; their texts."""

import hashlib
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset import opening
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.dataset.deleting import delete_documents
from jaxdata.dataset.opening import ConvertedDataset, JoinedDataset, source_meant
from jaxdata.dataset.records import file_offset
from jaxdata.storage import open_store
from jaxdata.testing import write_dataset
from tests import builders
from tests.dataset.documents.test_foreign import write_megatron


class Fixed(opening.Dataset):
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

    with mock.patch.object(opening, "kept_documents", lambda found, view: (found.name, view)):
        assert read(viewed.source("train", "a")) == ("train/a", "d1", ("train/a", None))
        assert read(viewed["a"]) == read(viewed["train/a"]), "of one split only"
        asked = viewed.source("train", "a", documents="d2", generation=2)
        assert read(asked) == ("train/a", "d2", ("train/a", 2))
        assert read(viewed["alone"]) == ("alone", None)
        assert read(plain["train/a"]) == ("train/a", None), "it stays as it was"
        both = Fixed("u", "train/val/b", "val/b")
        assert both["val/b"].name == "val/b", "not the one of split train"
    assert plain.splits == {"alone": [""], "train": ["a", "b"], "val": ["b"]}
    assert [*plain] == ["alone", "train/a", "train/b", "val/b"]
    known = [name for name in ("a", "val/b", "val/a", "c", "alone") if name in plain]
    assert (known, opening.source_names(plain, "train")) == (["a", "val/b", "alone"], ["a", "b"])
    for ask, message in (
        (lambda: opening.source_names(plain, "test"), "no split 'test': the dataset has alone, t"),
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
    assert (joined.source("val", "x", generation=3).name, one.opened) == ("val/a", [("val/a", 3)])
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
    said = r"sources 'x' and 'z' were made with different .*'t1' and"
    with pytest.raises(InputError, match=said):
        JoinedDataset(sources | {"z": (ours("t2"), "a")})


def test_the_source_that_a_config_means_is_named_alone_or_the_only_one() -> None:
    one, two = Fixed("u1", "train/a", "val/a"), Fixed("u2", "train/b", "train/a")
    assert source_meant(one, "x") == source_meant(two, "a") == source_meant(two, "x", "a") == "a"
    for dataset, source, wanted, known in (
        (two, None, "x", "a, b"), (one, "c", "c", "a"), (Fixed("u3"), None, "x", "none"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"has no source {wanted!r}, only {known}; choose one"):
            source_meant(dataset, "x", source)


LENGTHS = [1, 7, 900, 2, 9, 90, 1_200, 3, 300, 2_500]


@pytest.mark.parametrize("masked", [False, True])
def test_ranges_hold_tokens_and_masks_and_come_with_pages_that_documents_begin_or_fill(
    tmp_path: Path, masked: bool
) -> None:
    tokens = builders.documents(LENGTHS)
    masks = [np.arange(len(each)) % 3 > 0 for each in tokens]
    options = {"masks": {"a": masks}} if masked else {}
    sizes: Any = {"shard_documents": 3, "record_tokens": 999}
    folder = builders.dataset(tmp_path / "d", {"a": tokens}, **options, **sizes)
    docs: Any = jaxdata.open_dataset(folder)["a"]
    files = [(folder / shard.name).read_bytes() for shard in docs.entry.shards]
    extents = [extent(docs, number, length) for number, length in enumerate(LENGTHS)]
    ends = [extents[min(number + 2, 9)][1] for number in range(0, 10, 3)]
    over = docs.file_sizes - ends + 64  # the headers of the file; those of records differ by 2
    records = np.array([shard.records for shard in docs.entry.shards])
    assert ((records <= over) & (over <= 3 * records)).all()
    with mock.patch.object(opening, "PagedFiles") as opened:
        assert docs.pages is docs.pages is opened.return_value
    for size in (64, 512):
        pages = [(number // 3, first // size) for number, (first, _) in enumerate(extents)]
        at = [number for number in range(1, 10) if pages[number] != pages[number - 1]]
        assert docs.page_ends(size).tolist() == [*at, 10]
    for number, (own, mask) in enumerate(zip(tokens, masks, strict=True)):
        for start, stop in ((0, len(own)), (len(own) // 3, len(own) - 1), (0, min(len(own), 999))):
            page = 512
            asked = (np.array([each]) for each in (number, start, stop - start))
            with mock.patch.object(opening, "PAGE_BYTES", page):
                found = docs.page_ranges(*asked)
            ranges = [*zip(*(column.tolist() for column in found), strict=True)]
            assert start == stop or all(a < b for _, a, b, *_ in ranges)
            held = b"".join(files[file][a:b] for file, a, b, *_ in ranges)
            wanted = np.asarray(own[start:stop], docs.dtype).tobytes()
            assert held == wanted + (mask[start:stop].tobytes() if docs.masked else b"")
            for _, a, _, with_page, document in ranges:
                first, end = extent(docs, number, len(own))
                home = a // page == first // page or (a // page + 1) * page <= end
                assert (with_page, document) == (a // page - (not home), number)


def test_ends_across_any_byte_are_found_from_any_that_begins_before_it(tmp_path: Path) -> None:
    given = {"a": builders.documents(LENGTHS * 3)}
    docs: Any = jaxdata.open_dataset(builders.dataset(tmp_path, given, shard_documents=12))["a"]
    extents = [extent(docs, number, LENGTHS[number % 10]) for number in range(len(docs))]
    for shard in range(3):
        mine = range(12 * shard, min(12 * shard + 12, len(docs)))
        begins = [extents[number][0] for number in mine[1:]]
        for edge in (*range(200, extents[mine[-1]][1] + 300, 97), *begins):
            asked = [number for number in mine if extents[number][0] < edge]
            found = docs._ends_across(*np.array([[n, shard, edge] for n in asked]).T)
            expected = max(edge, max(extents[number][1] for number in asked))
            assert found.tolist() == [expected] * len(asked)


def extent(docs: Any, number: int, length: int) -> tuple[int, int]:
    """Where a document begins and ends in a file."""
    _, stream = docs.index.locate(np.array([number]))
    last = stream + docs.spec.stream_bytes([length]) - 1
    return int(file_offset(stream)[0]), int(file_offset(last)[0]) + 1


def test_records_that_are_not_those_of_the_index_are_refused_when_read(tmp_path: Path) -> None:
    one, other = (
        builders.dataset(tmp_path / name, {"a": builders.documents(lengths)})
        for name, lengths in (("one", [5, 9]), ("other", [9, 5]))
    )
    docs = jaxdata.open_dataset(one)["a"]
    [shard] = docs.entry.shards  # type: ignore[union-attr]
    (one / shard.name).write_bytes((other / shard.name).read_bytes())
    said = f"{one}/{shard.name}: its records are not those in the index of train/a; jaxdata verify"
    for _ in range(2):  # a second read is not trusted either
        with pytest.raises(DatasetError, match=said):
            docs.tokens(*np.array([[0], [0], [2]]))


def test_a_generation_lacking_documents_says_so_once(tmp_path: Path, caplog: Any) -> None:
    folder = builders.dataset(tmp_path, {"a": [3, 4]})
    delete_documents(folder, documents={"a": [1]})
    dataset = jaxdata.open_dataset(folder)
    for _ in range(2):
        blank = dataset.source("train", "a", generation=0).are_blank([0, 1])
        assert blank.tolist() == [False, True]
    (said,) = caplog.messages
    assert "of train/a, generation 0, 1 document of 4 tokens were deleted since: in rows " in said
    for number in (-1, 2):
        with pytest.raises(InputError, match=f"has no generation {number}: it has 0 to 1"):
            dataset.source("train", "a", generation=number)


def test_a_tokenizer_whose_files_are_others_is_refused() -> None:
    opened: Any = object.__new__(ConvertedDataset)
    opened.store, opened.url = open_store("memory://a-tokenizer"), "u"
    opened.store.write("tokenizer/tokenizer", b"other")
    files = {"tokenizer": hashlib.sha256(b"one").hexdigest()}
    entry = SimpleNamespace(files=files, kind="hf", name="n", eod_id=0, bos_id=0, pad_id=0)
    opened.manifest = SimpleNamespace(tokenizer=entry)
    with pytest.raises(DatasetError, match="tokenizer is missing, or differs from its check"):
        _ = opened.tokenizer
    entry.files["tokenizer"] = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(InputError, match=r"lacks its file 'tokenizer\.json'"):
        _ = opened.tokenizer


TEXTS = ["a dog", "", "on\n\x1b[31m two lines <b>", "längst" * 40, "five"]


def test_documents_of_every_kind_have_their_texts(tmp_path: Path) -> None:
    ours = write_dataset(tmp_path / "d", {"train/web": [[*text.encode(), 0] for text in TEXTS]})
    # The same documents as another tool has them, with the EOD of its tokenizer.
    spec = write_megatron(tmp_path / "old", [np.array([*text.encode(), 256]) for text in TEXTS])
    plain, theirs = jaxdata.open_dataset(spec), jaxdata.open_dataset(spec, tokenizer="bytes")
    joined = JoinedDataset({"ours": (ours, "web"), "x": (plain, "old")})
    for docs in [ours["web"], theirs["old"], theirs["old"].sequences, joined.source("train", "x")]:
        assert [docs.text(number) for number in range(len(docs))] == TEXTS
        assert (docs.text(-1), docs.text(np.int64(0))) == ("five", "a dog")  # type: ignore[arg-type]
        with pytest.raises(IndexError, match="no document 5: 5 are numbered from 0"):
            docs.text(5)
    assert ours.token_bytes[:256].tolist() == [0, *[1] * 255]
    head = ours["web"].head()
    assert head[3] == ("längst" * 17)[:99] + "…"
    assert repr(head).splitlines() == [
        "train/web: 5 documents",
        "0    6 tokens  a dog",
        "1     1 token  ",
        r"2   23 tokens  on\n\x1b[31m two lines <b>",
        f"3  281 tokens  {head[3]}",
        "4    5 tokens  five",
    ]
    assert ours["web"].head(-2) == []
    for unknown in (jaxdata.ArrayDocuments([[1, 2, 0]]), pickle.loads(pickle.dumps(ours["web"]))):
        with pytest.raises(InputError, match=f"^{unknown.name}: the tokenizer of these documents"):
            unknown.text(0)
    with pytest.raises(InputError, match="names no tokenizer; to decode, give it"):
        plain["old"].head()
