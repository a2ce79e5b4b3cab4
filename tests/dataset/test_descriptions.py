"""Files that describe others: what they may say, what a manifest tells, and their checksums."""

import hashlib
import json
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pydantic import TypeAdapter, ValidationError

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset import manifest
from jaxdata.dataset.manifest import as_type, read_manifest, update_manifest, with_checksum
from jaxdata.dataset.records import RecordSpec
from jaxdata.storage import open_store


def taken(kind: Any, value: Any) -> bool:
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


_parts = st.sampled_from(["", ".", "..", "...", "..a", ".a", "a", "a.b", "a\0", "a b", "ü"])


@given(st.lists(_parts, min_size=1, max_size=4))
def test_a_name_is_of_a_file_below(parts: list[str]) -> None:
    name = "/".join(parts)
    right = not {"", ".", ".."} & {*parts} and "\0" not in name
    assert taken(manifest.FileName, name) is right
    assert taken(manifest.SourceName, name) is (right and len(parts) > 1)
    assert taken(manifest.FolderName, name) is (right and len(parts) == 1)


def test_ids_depths_and_amounts_have_their_limits() -> None:
    assert [taken(manifest.TokenId, number) for number in (-2, -1, 2**32 - 1, 2**32)] == [
        False, True, True, False,
    ]  # fmt: skip
    nested: dict[str, Any] = {}
    for depth in range(1, 34):
        assert taken(manifest.Facts, nested) is (depth <= 32)
        nested = {"a": nested}
    assert manifest.Amount() == manifest.Amount(documents=0, ranges=0, tokens=0)


def test_what_cannot_be_read_is_no_missing_file(tmp_path: Path) -> None:
    far: Any = open_store("memory://descriptions/d")
    patched, said = mock.patch.object(far, "check_bucket"), r"not a dataset: it has no dataset\.j"
    with patched as asked, pytest.raises(DatasetError, match=said):
        read_manifest(far)
    asked.assert_called_once_with()
    store = open_store(tmp_path / "d")
    assert manifest.read_json(store, "m.json", manifest.Manifest, 2) is None
    with pytest.raises(DatasetError, match=r"/d is not a dataset: there is no such folder\. "):
        read_manifest(store)
    for error, said in ((OSError(5, "I/O"), "I/O"), (OSError("odd"), "odd")):
        failing = mock.patch.object(store, "read", side_effect=error)
        with failing, pytest.raises(DatasetError, match=f"/d/m.json cannot be read: {said}$"):
            manifest.read_json(store, "m.json", manifest.Manifest, 2)


@given(st.binary(max_size=90), st.data())
def test_bytes_are_followed_by_their_checksum_however_chunked(content: bytes, data: Any) -> None:
    whole = with_checksum(content)
    assert whole == content + hashlib.sha256(content).digest()
    assert manifest.checked_bytes(whole) == content
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert manifest.checked_bytes(bytes(flipped)) is None
    edges = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    for each, right in ((whole, True), (bytes(flipped), False), (whole[:-1], False)):
        chunks = [each[a:b] for a, b in pairwise([0, *edges, len(whole)])]
        assert manifest.ends_with_checksum(map(memoryview, chunks)) is right


def shard(number: int, documents: int = 1, tokens: int = 2, name: str = "s") -> manifest.ShardEntry:
    sizes: dict[str, Any] = {"documents": documents, "tokens": tokens, "records": 1, "bytes": 9}
    return manifest.ShardEntry(name=f"{name}{number}", sha256="f", **sizes)


def generation(number: int, **changes: Any) -> dict[str, Any]:
    """What a source was when it had so many shards, of a document of two tokens each."""
    sums = {name: f"{name}{number}" for name in manifest.COLUMNS}
    counts = {"documents": number, "tokens": 2 * number, "shards": number, "inputs": number}
    facts = {"parameters": {"p": number}, "statistics": {"s": number}, "checksums": sums}
    index = "index" if number == 1 else f"index-{number}"
    return counts | facts | {"fingerprint": f"f{number}", "index": index} | changes


def source(stages: int, **changes: Any) -> manifest.SourceEntry:
    """A source after so many appends."""
    last = generation(stages + 1) | {
        "shards": [shard(n) for n in range(stages + 1)],
        "inputs": [f"i{n}" for n in range(stages + 1)],
        "generations": [generation(n + 1) for n in range(stages)],
        "side": {"w": {"dtype": "int8", "shards": [shard(n, name="w") for n in range(stages + 1)]}},
    }
    return manifest.SourceEntry(**last | changes)


@pytest.mark.parametrize("stages", [0, 1, 3])
def test_a_source_knows_what_it_was_after_each_append(stages: int) -> None:
    entry = source(stages)
    for number in range(stages + 1):
        was = entry.at(number)
        assert was == source(number).model_copy(update={"masked": entry.masked})
        assert entry.generation_of(view_entry(generation=f"f{number + 1}")) == was
        assert was.as_generation() == manifest.Generation(**generation(number + 1))
    assert entry.generation_of(view_entry(generation="f9")) is None
    for number in (stages + 1, -stages - 1):
        with pytest.raises(IndexError):
            entry.at(number)
    assert pickle.loads(pickle.dumps(entry)) == entry
    names = [f"{kind}{n}" for kind in "sw" for n in range(stages + 1)]
    assert [each.name for each in entry.all_shards] == names


def test_a_source_has_side_arrays_of_its_own_documents_and_grows_from_any_size() -> None:
    for shards in ([], [shard(0, 2)], [shard(0, 1, 3)], [shard(0), shard(1)]):
        with pytest.raises(ValidationError, match="of its side array 'w' hold other documents"):
            source(0, side={"w": manifest.SideEntry(dtype="int8", shards=shards)})
    for name in ("documents", "tokens", "shards", "inputs"):
        source(1, generations=[generation(1, **{name: generation(2)[name]})])  # what it is now
        with pytest.raises(ValidationError, match=f"the {name} of its generations do not rise"):
            source(1, generations=[generation(1, **{name: 9})])


def view_entry(**changes: Any) -> manifest.ViewEntry:
    one = manifest.Amount(documents=1, tokens=2)
    account = manifest.ViewAccount(source=one, kept=one, listed=one, dropped={})
    given: dict[str, Any] = {"generation": "f", "fingerprint": "v", "folder": "d", "checksums": {}}
    given |= {"documents": 1, "tokens": 2, "parameters": {}, "account": account}
    return manifest.ViewEntry(**given | changes)


def whole(**changes: Any) -> manifest.Manifest:
    tokenizer = manifest.TokenizerEntry(
        kind="bytes", name="bytes", files={"a/b": "f"}, vocab_size=9, eod_id=0, bos_id=None,
        pad_id=None,
    )  # fmt: skip
    given: dict[str, Any] = {"tokenizer": tokenizer, "dtype": "uint16", "record_tokens": 5}
    return manifest.Manifest(**given | changes)


def test_a_manifest_is_written_and_read_as_it_was(tmp_path: Path) -> None:
    store, one = open_store(tmp_path), whole(sources={"train/a": source(2, masked=True)})
    seen: list[manifest.Manifest | None] = []
    for new in (one, two := whole(files={"q": "f"})):
        update_manifest(store, lambda was, new=new: seen.append(was) or new)
        assert read_manifest(store) == new
    assert seen == [None, one]
    data = store.read(manifest.MANIFEST) or b""
    fields = json.loads(data)
    sha256 = fields.pop("sha256")
    assert sha256 == hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    assert (fields["format"], fields["version"]) == ("jaxdata", 2)
    assert one.record_spec("train/a") == RecordSpec("uint16", True, 5)
    assert one.tokenizer.checksums == {"tokenizer/a/b": "f"}
    store.write(manifest.MANIFEST, json.dumps(json.loads(data)).encode())
    assert read_manifest(store) == two, "how it is written does not matter"
    for edited in (data.replace(b'"q"', b'"p"'), json.dumps(fields).encode()):
        store.write(manifest.MANIFEST, edited)
        for read in (lambda: read_manifest(store), lambda: update_manifest(store, lambda _: two)):
            with pytest.raises(DatasetError, match=r"/dataset.json differs from its check"):
                read()


def test_a_side_array_has_a_name_of_its_own() -> None:
    manifest.check_side("a" * 64, "float16")
    form = "expected a name of up to 64 letters, digits and '_', beginning with no digit"
    taken = "batches have another array of that name; give it another one"
    for names, said in (
        (("", "1a", "ä", "a-b", "a" * 65), form),
        (("tokens", "target_a", "chosen_a", "rejected_a"), taken),
    ):
        for name in names:
            with pytest.raises(InputError) as refused:
                manifest.check_side(name)
            assert str(refused.value) == f"side array {name!r}: {said}"
    with pytest.raises(InputError, match="side array 'a' is of bool; expected whole numbers or"):
        manifest.check_side("a", "bool")


_kinds = ["int8", "uint8", "int64", "uint64", "float16", "float32", "float64"]
_values = [0, -1, 127, 128, -128, -129, 255, 256, 2**63 - 1, -(2**63), 2**63, 65_504, 10**6]


@given(st.lists(st.sampled_from(_values), max_size=3), *[st.sampled_from(_kinds)] * 2)
def test_numbers_fit_a_type_where_it_holds_each(values: list[int], was: str, now: str) -> None:
    def holds(kind: str, value: int) -> bool:
        if kind.startswith("float"):
            return kind != "float16" or -65_520 < value < 65_520
        return int(np.iinfo(kind).min) <= value <= int(np.iinfo(kind).max)

    given_values = np.array([value for value in values if holds(was, value)], was)
    if was.startswith("float") and now in ("int64", "uint64"):
        given_values = given_values[np.abs(given_values) < 2.0**63]  # the edges are not told apart
    found = as_type(given_values, np.dtype(now))
    if not all(holds(now, int(value)) for value in given_values.tolist()):
        assert found is None
    else:
        assert found is not None
        assert (found.dtype, found.tolist()) == (now, given_values.astype(now).tolist())
    for one in (0.5, np.inf, np.nan):
        assert (as_type(np.array([one]), np.dtype(now)) is None) is (not now.startswith("float"))
