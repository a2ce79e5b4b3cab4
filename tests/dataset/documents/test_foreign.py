"""Other tools' datasets, read where they lie: files made byte by byte, as their tools make them."""

import itertools
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import jaxdata
from jaxdata.base.errors import ConfigError, DatasetError, InputError
from jaxdata.config import load, load_config, open_data
from jaxdata.dataset import plan_cache
from jaxdata.dataset.foreign import megatron, nanogpt
from jaxdata.dataset.foreign.documents import ForeignDocuments
from jaxdata.dataset.manifest import with_checksum
from jaxdata.storage.cached_files import kept_files
from jaxdata.testing import assert_exactly_once, distinct_documents
from tests import builders

CODES = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<f8": 6, "<f4": 7, "<u2": 8}
Documents = list[np.ndarray]
Patch = pytest.MonkeyPatch


def write_megatron(
    prefix: Path, sequences: Documents, dtype: str = "<u2", boundaries: list[int] | None = None
) -> str:
    """A pair as Megatron-Core writes it, from the byte layout and nothing of ours."""
    ends = boundaries or list(range(len(sequences) + 1))
    item, pointers, position = np.dtype(dtype).itemsize, [], 0
    for sequence in sequences:
        pointers.append(position)
        position += len(sequence) * item
    index = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", CODES[dtype])
    index += struct.pack("<QQ", len(sequences), len(ends))
    index += b"".join(struct.pack("<i", len(sequence)) for sequence in sequences)
    index += b"".join(struct.pack("<q", pointer) for pointer in pointers)
    index += b"".join(struct.pack("<q", end) for end in ends)
    Path(f"{prefix}.idx").write_bytes(index)
    Path(f"{prefix}.bin").write_bytes(b"".join(s.astype(dtype).tobytes() for s in sequences))
    return f"megatron:{prefix}"


def write_gpts(prefix: Path, windows: Documents, leads: Any = None, code: int = 2) -> str:
    offsets = [0, *np.cumsum([len(window) for window in windows]).tolist()]
    index = b"GPTS" + struct.pack("<III", 1, code, len(windows))
    index += struct.pack(f"<{len(offsets)}q", *offsets)
    index += struct.pack(f"<{len(windows)}H", *(leads or [0] * len(windows)))
    Path(f"{prefix}.idx").write_bytes(index)
    dtype = f"<u{code}"
    Path(f"{prefix}.bin").write_bytes(b"".join(w.astype(dtype).tobytes() for w in windows))
    return f"gpts:{prefix}"


def write_nanogpt(path: Path, documents: Documents) -> str:
    path.write_bytes(b"".join(document.astype("<u2").tobytes() for document in documents))
    return f"nanogpt:{path}"


def write_datatrove(path: Path, documents: Documents, item: int = 2, masks: Any = None) -> str:
    path.write_bytes(b"".join(document.astype(f"<u{item}").tobytes() for document in documents))
    ends = np.cumsum([len(document) for document in documents]).tolist()
    Path(f"{path}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    if masks is not None:
        Path(f"{path}.loss").write_bytes(b"".join(m.astype(bool).tobytes() for m in masks))
    return f"datatrove:{path}"


def made(seed: int = 0, count: int = 40, longest: int = 60, eod: int = 0) -> Documents:
    """Documents of ids in [1, 60,000) that end with EOD."""
    random = np.random.default_rng(seed)
    bodies = [random.integers(1, 50_000, n) for n in random.integers(0, longest, count)]
    return [np.append(body, eod) for body in bodies]


def only_source(spec: str, **given: Any) -> Any:
    dataset = jaxdata.open_dataset(spec, **given)
    assert list(dataset.splits) == ["train"]
    (name,) = dataset.splits["train"]
    return dataset.source("train", name)


def assert_holds(source: Any, documents: Documents) -> None:
    assert source.lengths.tolist() == [len(document) for document in documents]
    assert (source.lengths.dtype, len(source)) == (np.uint32, len(documents))
    for number, document in enumerate(documents):
        np.testing.assert_array_equal(source[number]["tokens"], document)
        half = len(document) // 2
        np.testing.assert_array_equal(source.read(number, half), document[half:])


WRITERS: dict[str, Any] = {
    "megatron": write_megatron, "megatron-i4": partial(write_megatron, dtype="<i4"),
    "gpts": write_gpts, "gpts-u4": partial(write_gpts, code=4), "nanogpt": write_nanogpt,
    "datatrove": write_datatrove, "datatrove-u4": partial(write_datatrove, item=4),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRITERS)
def test_documents_are_what_was_written(kind: str, tmp_path: Path) -> None:
    source = only_source(WRITERS[kind](tmp_path / "old", made()), eod_id=0)
    assert source.name == "train/old"
    assert_holds(source, made())
    assert_holds(pickle.loads(pickle.dumps(source)), made())


@pytest.mark.parametrize("dtype", CODES)
def test_megatron_dtypes(dtype: str, tmp_path: Path) -> None:
    largest = {"u1": 255, "i1": 127, "<i2": 32_767, "<u2": 65_535}.get(dtype, 2**24)
    documents = [np.array([0, 1, largest]), np.array([largest]), np.array([5, 6])]
    source = only_source(write_megatron(tmp_path / "old", documents, dtype))
    assert_holds(source, documents)
    assert source.dtype in (np.dtype("<u2"), np.dtype("<u4"))


def test_ids_that_are_none_are_refused(tmp_path: Path) -> None:
    for dtype, wrong in (("<i4", -1), ("<i8", 2**31), ("<i2", -7), ("<f4", 1.5)):
        documents = [np.array([1, 2]), np.array([3, 4, 5, wrong])]
        source = only_source(write_megatron(tmp_path / "old", documents, dtype))
        assert source[0]["tokens"].tolist() == [1, 2]
        expected = rf"old: token 3 of document 1 is {wrong}; expected a whole number from 0 to 21"
        with pytest.raises(DatasetError, match=expected):
            source.read(1, 2)


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    parts = [made(seed, count=9) for seed in range(3)]
    masks = [[np.arange(len(d)) % (n + 2) > 0 for d in part] for n, part in enumerate(parts)]
    for number, documents in enumerate(parts):
        write_datatrove(tmp_path / f"{number}.ds", documents, 4, masks[number])
        write_gpts(tmp_path / f"{number}", documents, [min(number, 1)] * len(documents))
    flat, hidden = ([each for part in parts_ for each in part] for parts_ in (parts, masks))
    for kind in ("datatrove", "gpts"):
        source = only_source(f"{kind}:{tmp_path}")
        assert source.name == f"train/{tmp_path.name}"
        assert_holds(source, flat)
        for number, mask in enumerate(hidden):
            expected = mask if kind == "datatrove" else np.arange(len(mask)) >= (number >= 9)
            assert source[number]["loss_mask"].tolist() == expected.tolist()


def test_files_of_several_dtypes_or_only_some_of_masks_are_no_one_dataset(tmp_path: Path) -> None:
    documents = made(count=3)
    masks = [np.arange(len(each)) % 2 > 0 for each in documents]
    kinds = {"a": (2, None), "b": (4, None), "c": (2, masks), "d": (2, None), "e": (2, masks)}
    for pair, agree in [("ab", False), ("ac", False), ("ca", False), ("ad", True), ("ce", True)]:
        (folder := tmp_path / pair).mkdir()
        for number, kind in enumerate(pair):
            write_datatrove(folder / f"{number}.ds", documents, *kinds[kind])
        if agree:
            assert len(only_source(f"datatrove:{folder}")) == 6
            continue
        with pytest.raises(DatasetError, match="open them as separate sources"):
            only_source(f"datatrove:{folder}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 7))
def test_nanogpt_documents_end_with_eod(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[int], words_at_once: int
) -> None:
    path = tmp_path_factory.mktemp("flat") / "train.bin"
    spec = write_nanogpt(path, [np.array([*tokens, 3, 2])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nanogpt, "_BYTES_AT_ONCE", 2 * words_at_once)
        source = only_source(spec, eod_id=3)
    text = "".join(map(str, [*tokens, 3, 2]))
    expected = [part + "3" for part in text.split("3")[:-1]] + ["2"]
    assert ["".join(map(str, source[k]["tokens"])) for k in range(len(source))] == expected


def test_documents_that_lack_eod_or_are_empty_conserve_their_targets(tmp_path: Path) -> None:
    documents = distinct_documents([3, 0, 1, 40, 0, 0, 7, 12, 0])
    source = only_source(write_megatron(tmp_path / "old", documents))
    loader = jaxdata.Loader(jaxdata.pack(source, seq_len=8, strategy="concat"), batch_size=1)
    assert_exactly_once(loader, [jaxdata.ArrayDocuments([each for each in documents if len(each)])])


def test_what_a_window_repeats_has_no_loss(tmp_path: Path) -> None:
    text = np.arange(1, 31)
    # Windows of 12 that repeat 4; the last lies wholly in what was before it.
    starts, leads = [0, 8, 16, 24, 28], [0, 4, 4, 4, 2]
    windows = [text[start : start + 12] for start in starts]
    source = only_source(write_gpts(tmp_path / "old", windows, leads))
    for number, context in enumerate(leads):
        expected = np.arange(len(windows[number])) >= context
        assert source[number]["loss_mask"].tolist() == expected.tolist()
    part = source.masks(np.array([1, 2]), np.array([2, 6]), np.array([5, 3]))
    assert part.views.join() == b"\0\0\1\1\1" + b"\1\1\1"


def test_the_index_of_a_flat_file_is_kept_and_made_again_where_it_or_the_file_is_another(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    spec = write_nanogpt(tmp_path / "train.bin", made())
    first = only_source(spec, eod_id=0)
    beside = tmp_path / "train.bin.jaxdata"
    (kept,) = (beside / "plans").iterdir()
    content, edges = kept.read_bytes(), np.cumsum([0, *map(len, made())])
    falling, later = edges.copy(), edges.copy()
    falling[2], later[0] = 0, 1
    damaged = [content[:-1], b"", with_checksum(b"1234567")]
    damaged += map(plan_cache._encode, (falling, later, edges[:-1], edges[:0]))
    for other in damaged:
        kept.write_bytes(other)
        assert only_source(spec, eod_id=0).fingerprint == first.fingerprint
        assert kept.read_bytes() == content
    with monkeypatch.context() as patch:
        patch.setattr(nanogpt, "_find_edges", None)  # would be called to look for documents
        only_source(spec, eod_id=0)
        os.utime(tmp_path / "train.bin", ns=(1, 1))  # rewritten: samples may be the same
        with pytest.raises(TypeError):
            only_source(spec, eod_id=0)
    shutil.rmtree(beside)
    beside.write_text("no folder can be made here")
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "mine"))
    only_source(spec, eod_id=0)
    mine = [path for path in (tmp_path / "mine").rglob("*") if path.is_file()]
    assert mine == [*kept_files(tmp_path / "mine")], "what `jaxdata cache clear --all` removes"


def test_fingerprints_follow_content_alone(tmp_path: Path) -> None:
    documents, edited = made(), made()
    edited[3][0] += 1
    moved = [*documents[:5], np.append(documents[5], documents[6][:1]), documents[6][1:]]
    given = [(documents, "<u2"), (edited, "<u2"), ([*moved, *documents[7:]], "<u2")]
    given += [(documents, "<i4"), (documents, "<u2")]
    specs = [write_megatron(tmp_path / f"{n}", *each) for n, each in enumerate(given)]
    prints = [only_source(spec).fingerprint for spec in specs]
    assert (len({*prints}), prints[0]) == (4, prints[-1])
    large = only_source(write_nanogpt(tmp_path / "large", [np.arange(200_000)]), eod_id=-1)
    assert large.fingerprint.startswith("fac838aa0f6869b8"), "states have it"


def test_what_was_asked_wrongly_is_said(tmp_path: Path) -> None:
    flat = write_nanogpt(tmp_path / "train.bin", [np.array([104, 105, 256])])
    ours = builders.dataset(tmp_path / "ours", {"web": made(1)})
    dataset = jaxdata.open_dataset(flat, tokenizer="bytes")
    assert dataset.decode(dataset.source("train", "train.bin")[0]["tokens"]) == "hi"
    assert_holds(only_source(flat, eod_id=-1), [np.array([104, 105, 256])])
    for error, message, ask in (
        (InputError, "expected megatron: followed by a path", lambda: only_source("megatron:")),
        (InputError, "'gs://b/o' is a URL, expected a path on this machine: copy the files",
         lambda: only_source("gpts:gs://b/o")),
        (DatasetError, r"none of its 3 tokens is 50256.*eod_id=…, or eod_id=-1",
         lambda: only_source(flat)),
        (DatasetError, r"no file that ends in \.ds", lambda: only_source(f"datatrove:{tmp_path}")),
        (InputError, r"names no tokenizer; to .*tokenizer='tiktoken:gpt2'",
         lambda: jaxdata.open_dataset(flat, eod_id=256).decode([104])),
        (InputError, "has its own tokenizer; remove tokenizer= and eod_id=",
         lambda: jaxdata.open_dataset(ours, tokenizer="bytes")),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            ask()


def test_a_config_mixes_them_with_ours(tmp_path: Path) -> None:
    ours = builders.dataset(tmp_path / "ours", {"web": made(1), "val/web": made(3, 9)})
    old = write_megatron(tmp_path / "old", made(4), "<i4")
    flat = {"dataset": write_nanogpt(tmp_path / "flat.bin", made(5)), "eod_id": 0}
    config = {
        "sources": {"web": str(ours), "old": old, "flat": flat},
        "pack": {"seq_len": 32},
        "curriculum": {"rows": 12, "mix": {"web": 0.4, "old": 0.4, "flat": 0.2}},
    }
    assert all(load(config, shard=(0, 1)).rows.counts().values())
    evaluated = load(config, split="val", shard=(0, 1), loader={"batch_size": 1})
    assert_exactly_once(evaluated, [jaxdata.ArrayDocuments(made(3, 9))])
    with pytest.raises(ConfigError, match=r"tokenizer='bytes' is for other tools' .*ours has"):
        open_data(load_config({"dataset": str(ours), "tokenizer": "bytes"}))
    alone = open_data(load_config({"sources": {"flat": flat}, "tokenizer": "bytes"}))
    assert (alone.decode([104, 105]), alone.eod_id) == ("hi", 0)


LENGTHS = [3, 0, 4, 1, 5]
HEADER = 34
LENGTH, POINTER, BOUNDARY = HEADER, HEADER + 4 * 5, HEADER + 12 * 5


def put(form: str, at: int, value: Any) -> Callable[[bytes], bytes]:
    """A change of a number in a file."""
    new = struct.pack(form, value)
    return lambda data: data[:at] + new + data[at + len(new) :]


Change = Callable[[bytes], bytes]
MEGATRON: dict[str, tuple[Change, str]] = {
    "33 bytes, expected a header of 34;": (lambda data: data[:33], "idx"),
    "b'MMIDIDY\\x00\\x00', version 1, expected b'MMIDIDX": (put("<B", 6, ord("Y")), "idx"),
    "b'MMIDIDX\\x00\\x00', version 2, expected b'MMIDIDX": (put("<Q", 9, 2), "idx"),
    "dtype code 9, expected one of 1, 2, 3, 4, 5, 6, 7, 8;": (put("<B", 17, 9), "idx"),
    "a first document that begins at 1, expected 0;": (put("<q", BOUNDARY, 1), "idx"),
    "document boundaries up to [4], expected 5, its seq": (put("<q", BOUNDARY + 40, 4), "idx"),
    "document boundaries up to [], expected 5, its seq": (
        lambda data: put("<Q", 26, 0)(data)[:BOUNDARY], "idx"),
    "document 2 ending before it begins, expected rising ends;": (
        put("<q", BOUNDARY + 16, 6), "idx"),
    "the byte pointer 14 at sequence 3, expected 14, the sum": (put("<i", LENGTH + 12, -2), "idx"),
    "the byte pointer 7 at sequence 0, expected 0, the sum": (put("<q", POINTER, 7), "idx"),
    "24 bytes, expected 26 (13 tokens, says old.idx)": (lambda data: data[:-2], "bin"),
}  # fmt: skip
GPTS: dict[str, tuple[Change, str]] = {
    "15 bytes, expected a header of 16;": (lambda data: data[:15], "idx"),
    "dtype code 3, expected 2 (uint16) or 4 (uint32);": (put("<I", 8, 3), "idx"),
    "a first document that begins at -1, expected 0;": (put("<q", 16, -1), "idx"),
    "document 1 ending before it begins, expected rising": (put("<q", 24, 9), "idx"),
    "28 bytes, expected 26 (13 tokens of 2 bytes, says": (lambda data: data + b"??", "bin"),
}


@pytest.mark.parametrize("said", MEGATRON | GPTS)
def test_a_damaged_pair_is_refused_in_words(tmp_path: Path, monkeypatch: Patch, said: str) -> None:
    monkeypatch.setattr(megatron, "_NUMBERS_AT_ONCE", 2)
    write = write_megatron if said in MEGATRON else write_gpts
    spec = write(tmp_path / "old", distinct_documents(LENGTHS))
    change, suffix = (MEGATRON | GPTS)[said]
    file = tmp_path / f"old.{suffix}"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(DatasetError, match=re.escape(f"{file} is damaged: it has {said}")):
        ForeignDocuments(spec)


def test_what_lacks_its_tokens_or_has_other_masks_is_refused_in_words(tmp_path: Path) -> None:
    documents = distinct_documents(LENGTHS)
    for kind, write in (("megatron", write_megatron), ("gpts", write_gpts)):
        spec = write(tmp_path / kind, documents)
        (tmp_path / f"{kind}.bin").unlink()
        said = f"{kind}.bin is missing: {spec} is the two files {kind}.bin and {kind}.idx"
        with pytest.raises(DatasetError, match=re.escape(said)):
            ForeignDocuments(spec)
    with pytest.raises(DatasetError, match=r"none\.ds is missing: datatrove:PATH is a \.ds file"):
        ForeignDocuments(f"datatrove:{tmp_path}/none.ds")
    masks = [np.ones(len(each)) for each in documents]
    spec = write_datatrove(tmp_path / "d.ds", documents, masks=masks[1:])
    said = r"d\.ds\.loss is damaged: .*one for each token of d\.ds"
    with pytest.raises(DatasetError, match=said):
        ForeignDocuments(spec)


@pytest.mark.parametrize("at_once", [1, 2, 5, 6])
@pytest.mark.parametrize("boundaries", [None, [0, 1, 2, 3, 3, 5], [0, 2, 3, 4, 5], [0, 5]])
def test_a_long_index_is_checked_in_parts(
    tmp_path: Path, monkeypatch: Patch, at_once: int, boundaries: list[int] | None
) -> None:
    monkeypatch.setattr(megatron, "_NUMBERS_AT_ONCE", at_once)
    sequences = distinct_documents(LENGTHS)
    spec = write_megatron(tmp_path / "old", sequences, "<i4", boundaries)
    edges = itertools.pairwise(boundaries or range(6))
    joined = [np.concatenate([*sequences[a:b], []]) for a, b in edges]
    with (tmp_path / "old.idx").open("ab") as file:
        file.write(bytes(5))  # modes of a multimodal index
    source = ForeignDocuments(spec)
    assert_holds(source, joined)
    assert_holds(pickle.loads(pickle.dumps(source.sequences)), sequences)
