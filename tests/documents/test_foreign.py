"""Other tools' datasets, read where they lie: files made byte by byte, as their tools make them."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.cli import main
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.cache import kept_files
from jaxdata.format.foreign import nanogpt
from jaxdata.testing import (
    assert_exactly_once,
    assert_resumes_everywhere,
    assert_same_batches,
    assert_same_on_hosts,
    distinct_documents,
    write_dataset,
)

CODES = {"u1": 1, "i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<f8": 6, "<f4": 7, "<u2": 8}
Documents = list[np.ndarray]


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


def write_gpts(
    prefix: Path, windows: Documents, leads: list[int] | None = None, code: int = 2
) -> str:
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


def write_datatrove(
    path: Path, documents: Documents, item: int = 2, masks: Documents | None = None
) -> str:
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
    assert len(source) == len(documents)
    for number, document in enumerate(documents):
        np.testing.assert_array_equal(source[number]["tokens"], document)
        half = len(document) // 2
        np.testing.assert_array_equal(source.read(number, half), document[half:])


WRITERS: dict[str, Any] = {
    "megatron": lambda folder, docs: write_megatron(folder / "old", docs),
    "megatron-i4": lambda folder, docs: write_megatron(folder / "old", docs, "<i4"),
    "gpts": lambda folder, docs: write_gpts(folder / "old", docs),
    "gpts-u4": lambda folder, docs: write_gpts(folder / "old", docs, code=4),
    "nanogpt": lambda folder, docs: write_nanogpt(folder / "old", docs),
    "datatrove": lambda folder, docs: write_datatrove(folder / "old", docs),
    "datatrove-u4": lambda folder, docs: write_datatrove(folder / "old", docs, 4),
}


@pytest.fixture(params=WRITERS)
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Documents]:
    documents = made()
    return WRITERS[request.param](tmp_path, documents), documents


def open_foreign(spec: str) -> Any:
    given = {"eod_id": 0} if spec.startswith("nanogpt:") else {}
    return only_source(spec, **given)


def test_documents_are_what_was_written(foreign: tuple[str, Documents]) -> None:
    spec, documents = foreign
    source = open_foreign(spec)
    assert source.name == "train/old"
    assert_holds(source, documents)
    assert_holds(pickle.loads(pickle.dumps(source)), documents)


def test_all_the_rest_works_on_them(foreign: tuple[str, Documents]) -> None:
    spec, documents = foreign
    rows = jaxdata.pack(open_foreign(spec), seq_len=32, overlap=4, order=1, block=16)
    same = jaxdata.pack(
        jaxdata.ArrayDocuments(documents, name="train/old"),
        seq_len=32,
        overlap=4,
        order=1,
        block=16,
    )
    assert_same_batches([rows[k] for k in range(len(same))], [same[k] for k in range(len(same))])

    def loader(shard: tuple[int, int] = (0, 1), **given: Any) -> jaxdata.Loader:
        return jaxdata.Loader(rows, batch_size=4, shard=shard, **given)

    assert_resumes_everywhere(loader, tail=2)
    assert_same_on_hosts(loader, [2, 4])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["megatron-i4", "gpts", "nanogpt", "datatrove"])
def test_worker_processes_read_them(kind: str, tmp_path: Path) -> None:
    rows = jaxdata.pack(open_foreign(WRITERS[kind](tmp_path, made())), seq_len=32)
    here, there = (
        jaxdata.Loader(rows, batch_size=4),
        jaxdata.Loader(rows, batch_size=4, num_workers=2),
    )
    assert assert_same_batches(here, there) == len(here)
    there.close()


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "pad"])
def test_documents_that_lack_eod_or_are_empty_conserve_their_targets(
    strategy: str, tmp_path: Path
) -> None:
    documents = distinct_documents([3, 0, 1, 40, 0, 0, 7, 12, 0])
    source = only_source(write_megatron(tmp_path / "old", documents))
    rows = jaxdata.pack(source, seq_len=8, strategy=strategy)
    whole = [document for document in documents if len(document)]
    loader = jaxdata.Loader(rows, batch_size=1)
    assert_exactly_once(loader, [jaxdata.ArrayDocuments(whole)])


@pytest.mark.parametrize("dtype", CODES)
def test_megatron_dtypes(dtype: str, tmp_path: Path) -> None:
    largest = {"u1": 255, "i1": 127, "<i2": 32_767, "<u2": 65_535}.get(dtype, 2**24)
    documents = [np.array([0, 1, largest]), np.array([largest]), np.array([5, 6])]
    source = only_source(write_megatron(tmp_path / "old", documents, dtype))
    assert_holds(source, documents)
    assert source.dtype in (np.dtype("<u2"), np.dtype("<u4"))


@pytest.mark.parametrize(
    ("dtype", "id_", "shown"),
    [("<i4", -1, "-1"), ("<i8", 2**31, "2147483648"), ("<i2", -7, "-7"), ("<f4", 1.5, "1.5")],
)
def test_ids_that_are_none_are_refused(dtype: str, id_: Any, shown: str, tmp_path: Path) -> None:
    documents = [np.array([1, 2]), np.array([3, 4, 5, id_])]
    source = only_source(write_megatron(tmp_path / "old", documents, dtype))
    assert source[0]["tokens"].tolist() == [1, 2]
    expected = rf"old: token 3 of document 1 is {shown}; expected a whole number from 0 to 21"
    with pytest.raises(DatasetError, match=expected):
        source.read(1, 2)


def test_megatron_documents_and_their_sequences(tmp_path: Path) -> None:
    sequences = distinct_documents([3, 2, 4, 1, 5])
    spec = write_megatron(tmp_path / "old", sequences, boundaries=[0, 2, 2, 3, 5])
    source = only_source(spec)
    joined = [np.concatenate([*sequences[a:b], []]) for a, b in [(0, 2), (2, 2), (2, 3), (3, 5)]]
    assert_holds(source, joined)
    assert_holds(source.sequences, sequences)
    assert_holds(pickle.loads(pickle.dumps(source.sequences)), sequences)


def test_what_a_window_repeats_has_no_loss(tmp_path: Path) -> None:
    text = np.arange(1, 31)
    # Windows of 12 that repeat 4; the last lies wholly in what was before it.
    starts, leads = [0, 8, 16, 24, 28], [0, 4, 4, 4, 2]
    windows = [text[start : start + 12] for start in starts]
    source = only_source(write_gpts(tmp_path / "old", windows, leads))
    assert source.masked
    for number, context in enumerate(leads):
        mask = source[number]["loss_mask"]
        assert mask.tolist() == [False] * context + [True] * (len(windows[number]) - context)
    part = source.masks(np.array([1, 2]), np.array([2, 6]), np.array([5, 3]))
    assert part.views.join() == b"\0\0\1\1\1" + b"\1\1\1"
    rows = jaxdata.pack(source, seq_len=16)
    trained = [row["targets"][row["loss_mask"]] for row in (rows[k] for k in range(len(rows)))]
    assert sorted(np.concatenate(trained).tolist()) == list(range(2, 31))


def test_datatrove_loss(tmp_path: Path) -> None:
    documents = made(count=5)
    masks = [np.arange(len(document)) % 3 > 0 for document in documents]
    source = only_source(write_datatrove(tmp_path / "a.ds", documents, masks=masks))
    for number, mask in enumerate(masks):
        assert source[number]["loss_mask"].tolist() == mask.tolist()
    pieces = source.masks(np.array([1, 3]), np.array([1, 0]), np.array([2, 1]))
    assert pieces.views.join() == masks[1][1:3].tobytes() + masks[3][:1].tobytes()


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    parts = [made(seed) for seed in range(3)]
    for number, documents in enumerate(parts):
        write_datatrove(tmp_path / f"{number}.ds", documents)
        write_gpts(tmp_path / f"{number}", documents, [number] * len(documents))
    for kind in ("datatrove", "gpts"):
        source = only_source(f"{kind}:{tmp_path}")
        assert source.name == f"train/{tmp_path.name}"
        assert_holds(source, [document for documents in parts for document in documents])
    assert source[len(parts[0])]["loss_mask"].tolist()[:2] == [False, True][: len(parts[1][0])]


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


def test_the_index_of_a_flat_file_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_nanogpt(tmp_path / "train.bin", made())
    first = only_source(spec, eod_id=0)
    kept = list((tmp_path / "train.bin.jaxdata").iterdir())
    assert [path.suffix for path in kept] == [".ends"]
    monkeypatch.setattr(nanogpt, "_ends", None)  # would be called to look for documents
    again = only_source(spec, eod_id=0)
    assert again.fingerprint == first.fingerprint
    with pytest.raises(TypeError):
        only_source(spec, eod_id=1)


def test_it_is_kept_for_the_user_where_the_data_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_nanogpt(tmp_path / "train.bin", made())
    (tmp_path / "train.bin.jaxdata").write_text("no folder can be made here")
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "mine"))
    rows = jaxdata.pack(only_source(spec, eod_id=0), seq_len=16)
    assert len(rows)
    kept = {path for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    assert {path.suffix for path in kept} == {".ends", ".npy"}
    assert kept == {*kept_files(tmp_path / "mine")}, "what `jaxdata cache clear --all` removes"


def test_a_flat_file_that_was_written_anew_is_indexed_anew(tmp_path: Path) -> None:
    documents = made(count=3_000)  # long enough for a place between the samples
    spec = write_nanogpt(tmp_path / "train.bin", documents)
    before = only_source(spec, eod_id=0)
    documents[0], documents[1] = documents[1], documents[0]
    write_nanogpt(tmp_path / "train.bin", documents)
    os.utime(tmp_path / "train.bin", ns=(1, 1))
    assert_holds(only_source(spec, eod_id=0), documents)
    assert only_source(spec, eod_id=0).fingerprint != before.fingerprint


def test_what_changes_between_the_samples_is_seen_by_its_time(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    tokens = np.ones(2_000_000, "<u2")
    for place in (0, 1_015_000):  # the second is in none of the samples
        tokens[place] = 0
        path.write_bytes(tokens.tobytes())
        os.utime(path, ns=(place, place))
        source = only_source(f"nanogpt:{path}", eod_id=0)
        assert source.lengths.tolist()[-1] == 2_000_000 - place - 1


def test_a_flat_file_without_eod_says_what_to_give(tmp_path: Path) -> None:
    spec = write_nanogpt(tmp_path / "train.bin", [np.arange(1, 9)])
    with pytest.raises(
        DatasetError, match=r"none of its 8 tokens is 50256.*eod_id=…, or eod_id=-1"
    ):
        jaxdata.open_dataset(spec)
    assert_holds(only_source(spec, eod_id=-1), [np.arange(1, 9)])


def test_fingerprints_follow_content_alone(tmp_path: Path) -> None:
    documents = made()
    one = only_source(write_megatron(tmp_path / "one", documents)).fingerprint
    assert only_source(write_megatron(tmp_path / "two", documents)).fingerprint == one
    documents[3][0] += 1
    assert only_source(write_megatron(tmp_path / "two", documents)).fingerprint != one
    documents[3][0] -= 1
    moved = [*documents[:5], np.append(documents[5], documents[6][:1]), documents[6][1:]]
    moved += documents[7:]
    assert only_source(write_megatron(tmp_path / "two", moved)).fingerprint != one
    assert only_source(write_megatron(tmp_path / "two", documents, "<i4")).fingerprint != one


def test_there_are_no_checksums_to_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["verify", write_megatron(tmp_path / "old", made())])
    assert "old has no checksums to compare with" in capsys.readouterr().err


def test_specs_that_are_none() -> None:
    with pytest.raises(InputError, match="expected megatron: followed by a path"):
        jaxdata.open_dataset("megatron:")
    with pytest.raises(InputError, match=r"cannot open 'ftp://bucket/old\.jaxdata'"):
        jaxdata.open_dataset("gpts:ftp://bucket/old")


def test_text_is_asked_of_the_tokenizer_that_was_given(tmp_path: Path) -> None:
    spec = write_nanogpt(tmp_path / "train.bin", [np.frombuffer(b"hi", "u1"), np.array([256])])
    dataset = jaxdata.open_dataset(spec, tokenizer="bytes")
    assert dataset.decode(dataset.source("train", "train.bin")[0]["tokens"]) == "hi"
    assert len(dataset.token_bytes) == 257
    with pytest.raises(InputError, match=r"does not name its tokenizer.*tokenizer='tiktoken:gpt2'"):
        jaxdata.open_dataset(spec, eod_id=256).decode([104])
    write_dataset(tmp_path / "ours", {"train/web": [[1, 0]]})
    with pytest.raises(InputError, match="has its own tokenizer; remove tokenizer= and eod_id="):
        jaxdata.open_dataset(tmp_path / "ours", tokenizer="bytes")
