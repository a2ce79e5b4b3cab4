"""Corpora that are tokenised already: lists of ids from tables and JSON, with masks and labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.cli import cli
from jaxdata.converter.inputs.formats.columns import rows
from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.converter.inputs.units import ReadSettings
from jaxdata.converter.tasks import make_settings, make_task
from jaxdata.converter.tasks.ids import whole_numbers
from jaxdata.errors import InputError
from jaxdata.tokenizers import load
from tests.converter.here import run_here
from tests.converter.test_convert import documents, manifest, quarantine, write_lines
from tests.tokenizers.test_tokenizers import open_one

EOD = 256
DOCUMENTS = [[5, 7, 9], [], [1, EOD], [255], [EOD], [2, EOD, 3]]
ENDED = [[5, 7, 9, EOD], [EOD], [1, EOD], [255, EOD], [EOD], [2, EOD, 3, EOD]]


def lines(*records: Any) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def found(output: Path, source: str = "train/web") -> list[list[int]]:
    return [one.tolist() for one in documents(output, source)]


def masked(output: Path) -> list[tuple[list[int], list[int]]]:
    docs = jaxdata.open_dataset(output).source("train", "web")
    return [
        (docs[i]["tokens"].tolist(), docs[i]["loss_mask"].astype(int).tolist())
        for i in range(len(docs))
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.list_(pa.uint16()),
        pa.large_list(pa.int32()),
        pa.list_view(pa.int32()),
    ],
    ids=str,
)
def test_lists_of_tables_become_documents_that_end_once(tmp_path: Path, kind: Any) -> None:
    table = pa.table({"text": ["?"] * len(DOCUMENTS), "ids": pa.array(DOCUMENTS, kind)})
    if kind != pa.list_view(pa.int32()):
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    with pa.ipc.new_file(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    files = sorted(tmp_path.glob("*.*"))
    run_here(tmp_path, tmp_path / "out", task="ids", ids_key="ids")
    assert found(tmp_path / "out") == ENDED * len(files)


def test_what_save_to_disk_wrote_and_lines_of_json_give_the_same(tmp_path: Path) -> None:
    made = datasets.Dataset.from_dict({"input_ids": DOCUMENTS, "attention_mask": DOCUMENTS})
    made.save_to_disk(tmp_path / "saved", num_shards=2)
    write_lines(tmp_path / "a.jsonl", lines(*({"input_ids": one} for one in DOCUMENTS)))
    for name in ("saved", "a.jsonl"):
        run_here(tmp_path / name, tmp_path / "out" / name, task="ids")
        assert found(tmp_path / "out" / name) == ENDED
    docs = jaxdata.open_dataset(tmp_path / "out/saved").source("train", "web")
    assert [docs.origin(i)[1] for i in range(6)] == [0, 1, 2, 0, 1, 2]


def test_ids_of_a_text_give_the_text_s_own_dataset(tmp_path: Path, shared_data: Path) -> None:
    tokenizer = open_one(shared_data, "gpt2")
    texts = [f"{'The end of days. ' * number}Über…" for number in range(60)]
    write_lines(tmp_path / "a.jsonl", lines(*({"text": text} for text in texts)))
    ids = [one.tolist() for one in tokenizer.encode(texts)]
    pq.write_table(pa.table({"input_ids": ids}), tmp_path / "a.parquet")
    run_here(tmp_path / "a.jsonl", tmp_path / "texts", tokenizer=tokenizer, record_tokens=64)
    run_here(
        tmp_path / "a.parquet", tmp_path / "ids", tokenizer=tokenizer, task="ids", record_tokens=64
    )
    shards = [
        (tmp_path / name / manifest(tmp_path / name)["sources"]["train/web"]["shards"][0]["name"])
        for name in ("texts", "ids")
    ]
    assert shards[0].read_bytes() == shards[1].read_bytes()
    docs = jaxdata.open_dataset(tmp_path / "ids")
    assert docs.decode(docs.source("train", "web")[3]["tokens"]).startswith("The end of days. ")


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.int64()], ids=str)
def test_masks(tmp_path: Path, kind: Any) -> None:
    masks = [[0, 1, 1], [], [0, 0], [1], [0], [1, 1, 0]]
    of_kind = [[bool(x) if kind == pa.bool_() else x for x in mask] for mask in masks]
    table = {"input_ids": DOCUMENTS, "mask": pa.array(of_kind, pa.list_(kind))}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    write_lines(
        tmp_path / "a.jsonl",
        lines(*({"input_ids": i, "mask": m} for i, m in zip(DOCUMENTS, of_kind, strict=True))),
    )
    ended = [[0, 1, 1, 1], [1], [0, 0], [1, 1], [0], [1, 1, 0, 0]]  # EOD as its neighbour
    for name in ("a.parquet", "a.jsonl"):
        run_here(tmp_path / name, tmp_path / f"out-{name}", task="ids", mask_key="mask")
        assert masked(tmp_path / f"out-{name}") == list(zip(ENDED, ended, strict=True))
    counted = manifest(tmp_path / "out-a.parquet")["sources"]["train/web"]["statistics"]
    assert counted["loss_tokens"] == sum(sum(mask[1:]) for mask in ended)
    assert counted["text_bytes"] == counted["tokens_per_byte"] == 0


def test_labels_are_masks_and_shifted_ones_are_told(tmp_path: Path) -> None:
    records = [
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3]},
        {"input_ids": [1, 2, 3], "labels": [2, 3, -100]},
    ]
    path = write_lines(tmp_path / "a.jsonl", lines(*records))
    report = run_here(path, tmp_path / "out", task="ids", labels_key="labels")
    assert masked(tmp_path / "out") == [([1, 2, 3, EOD], [0, 1, 1, 1])]
    assert report.quarantined == {
        "'labels' holds a label that is neither -100 nor the id at its place": 1
    }


BAD = {
    "'ids' holds an id outside the vocabulary of 257": [1, 257],
    "'ids' holds a negative id": [3, -1],
    "'ids' holds a number of more than 64 bits": [2**63],
    "'ids' holds what is not a whole number": [1.0],
    "'ids' is not a list": "1 2",
    "'ids' is null": None,
}


@pytest.mark.parametrize("reason", BAD)
def test_what_are_no_ids_is_quarantined_with_the_reason(tmp_path: Path, reason: str) -> None:
    path = write_lines(tmp_path / "a.jsonl", lines({"ids": BAD[reason]}, {"ids": [4]}))
    report = run_here(path, tmp_path / "out", task="ids", ids_key="ids")
    assert report.quarantined == {reason: 1}
    assert found(tmp_path / "out") == [[4, EOD]]
    with pytest.raises(InputError, match=r"a\.jsonl:1: .* holds|a\.jsonl:1: .* is "):
        run_here(path, tmp_path / "other", task="ids", ids_key="ids", on_error="fail")


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        ([[1, 257]], pa.int64(), "'ids' holds an id outside the vocabulary of 257"),
        ([[1, -5]], pa.int8(), "'ids' holds a negative id"),
        ([[2**64 - 1]], pa.uint64(), "'ids' holds an id outside the vocabulary of 257"),
        ([[1, None]], pa.int64(), "'ids' holds what is not a whole number"),
        ([[1.0]], pa.float32(), "'ids' holds what is not a whole number"),
        ([[True]], pa.bool_(), "'ids' holds what is not a whole number"),
        ([None], pa.int64(), "'ids' is null"),
    ],
)
def test_of_tables_too(tmp_path: Path, values: Any, kind: Any, reason: str) -> None:
    good = [[kind.to_pandas_dtype()(1)]] if reason == "'ids' is null" else []
    pq.write_table(
        pa.table({"ids": pa.array(values + good, pa.list_(kind))}), tmp_path / "a.parquet"
    )
    pq.write_table(pa.table({"ids": [[4]]}), tmp_path / "b.parquet")
    report = run_here(tmp_path, tmp_path / "out", task="ids", ids_key="ids")
    assert report.quarantined == {reason: 1}
    (bad,) = quarantine(tmp_path / "out")
    assert (bad["file"], bad["row"]) == ("a.parquet", 0)
    assert values == [None] or json.loads(bad["raw"]) == values[0]


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ([1], "'mask' is not as long as 'input_ids'"),
        ([0, 2], "'mask' holds other values than 0 and 1"),
        ([0, -1], "'mask' holds other values than 0 and 1"),
        ([0.0, 1.0], "'mask' holds what is not a whole number"),
        (None, "'mask' is null"),
    ],
)
def test_masks_that_are_none(mask: Any, reason: str) -> None:
    tokenizer = load("bytes")
    task = make_task(make_settings("ids", tokenizer, {"mask_key": "mask"}), tokenizer)
    with pytest.raises(BadRecord, match=reason):
        task.prepare({"input_ids": [1, 2], "mask": mask})
    with pytest.raises(BadRecord, match=reason):
        task.prepare({"input_ids": np.array([1, 2]), "mask": mask and np.array(mask)})


def test_how_documents_begin_and_end(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", lines(*({"input_ids": one} for one in DOCUMENTS)))
    report = run_here(path, tmp_path / "kept", task="ids", ids_end="keep")
    assert found(tmp_path / "kept") == [one for one in DOCUMENTS if one]
    assert report.dropped == {"no id in it": 1}
    tokenizer = load("bytes", bos=5)
    run_here(path, tmp_path / "bos", task="ids", bos=True, tokenizer=tokenizer)
    assert found(tmp_path / "bos") == [one if one[0] == 5 else [5, *one] for one in ENDED]


def test_splits_follow_the_ids(tmp_path: Path) -> None:
    ids = [[number, number + 1] for number in range(60)]
    path = write_lines(tmp_path / "a.jsonl", lines(*({"input_ids": one} for one in ids * 2)))
    ended = write_lines(tmp_path / "b.jsonl", lines(*({"input_ids": [*one, EOD]} for one in ids)))
    run_here([path, ended], tmp_path / "out", task="ids", split_ratio="train=1,val=1")
    train, val = (
        {*map(tuple, found(tmp_path / "out", f"{name}/web"))} for name in ("train", "val")
    )
    assert train
    assert val
    assert not train & val
    assert train | val == {(*one, EOD) for one in ids}


def test_what_needs_texts_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", lines({"input_ids": [1]}))
    with pytest.raises(
        InputError, match="reads no text: --strip, --min-chars cannot be done to it"
    ):
        run_here(path, tmp_path / "out", task="ids", strip=True, min_chars=3)
    with pytest.raises(InputError, match="give a mask or labels, not both"):
        run_here(path, tmp_path / "out", task="ids", mask_key="m", labels_key="l")
    with pytest.raises(InputError, match="no option 'text_key'"):
        run_here(path, tmp_path / "out", task="ids", text_key="t")
    with pytest.raises(InputError, match=r"has the key 'input_id'; .* 'input_ids': .*--ids-key"):
        run_here(path, tmp_path / "out", task="ids", ids_key="input_id")
    pq.write_table(pa.table({"input_ids": [[1]]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"no column 'loss'; it has 'input_ids': .*--mask-key"):
        run_here(tmp_path / "a.parquet", tmp_path / "out", task="ids", mask_key="loss")


def test_from_the_command_line_to_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2, 3]] * 8}), tmp_path / "a.parquet")
    given = ["convert", tmp_path / "a.parquet", "--task", "ids", "--ids-key", "input_ids"]
    given += ["--tokenizer", "bytes", "--output", tmp_path / "out", "--source", "web"]
    done = CliRunner().invoke(cli, [*map(str, given)])
    assert done.exit_code == 0, done.output
    assert "wrote train/web: 32 tokens" in done.output
    assert "MB" not in done.output.partition("counted")[0]  # there was no text
    rows = jaxdata.pack(jaxdata.open_dataset(tmp_path / "out").source("train", "web"), seq_len=8)
    (batch,) = jaxdata.Loader(rows, batch_size=len(rows))
    assert int(batch["loss_mask"].sum()) == 8 * 3
    with pytest.warns(UserWarning, match="convert it once"):
        streamed = jaxdata.stream_text(
            str(tmp_path / "a.parquet"),
            tokenizer="bytes",
            seq_len=8,
            batch_size=1,
            num_workers=0,
            task="ids",
        )
    assert sum(int(one["loss_mask"].sum()) for one in streamed) == 8 * 3


def halved(record: dict[str, Any]) -> dict[str, Any]:
    assert type(record["input_ids"]) is list
    return {"input_ids": [one // 2 for one in record["input_ids"]]}


def test_a_transform_gets_lists(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[4, 8]]}), tmp_path / "a.parquet")
    run_here(tmp_path / "a.parquet", tmp_path / "out", task="ids", transform=f"{__name__}:halved")
    assert found(tmp_path / "out") == [[2, 4, EOD]]


def test_the_same_command_again_and_files_that_changed(tmp_path: Path) -> None:
    long = pa.array([np.full(300_000, number) for number in range(3)])  # arrays of over 1 MiB
    pq.write_table(pa.table({"input_ids": long}), tmp_path / "a.parquet")
    run_here(tmp_path / "a.parquet", tmp_path / "out", task="ids")
    again = run_here(tmp_path / "a.parquet", tmp_path / "out", task="ids", verify_inputs=True)
    assert again.already_complete


LISTS = st.lists(st.none() | st.lists(st.integers(0, 9) | st.none(), max_size=4), max_size=12)


@given(LISTS, st.sampled_from(["list", "large", "fixed"]), st.data())
def test_arrays_of_a_slice_are_its_lists(lists: list[Any], kind: str, data: Any) -> None:
    if kind == "fixed":
        lists = [one and [1, *one, 2, 3, 4][:4] for one in lists]
        lists = [one if one and len(one) == 4 else None for one in lists]
    kinds = {"list": pa.list_(pa.int16()), "large": pa.large_list(pa.int64())}
    array = pa.array(lists, kinds.get(kind) or pa.list_(pa.int8(), 4))
    start = data.draw(st.integers(0, len(lists)))
    batch = pa.record_batch({"ids": array}).slice(start, data.draw(st.integers(0, len(lists))))
    read = rows(batch, ReadSettings(("ids",), arrays=("ids",)))
    values = [one["ids"] for one in read]
    assert [one.tolist() if isinstance(one, np.ndarray) else one for one in values] == (
        batch.column("ids").to_pylist()
    )
    if kind != "fixed" and not any(None in one for one in lists if one):
        assert all(one is None or isinstance(one, np.ndarray) for one in values)


@given(st.lists(st.integers(-(2**70), 2**70) | st.booleans() | st.floats()))
def test_whole_numbers_are_the_numbers_or_an_error(values: list[Any]) -> None:
    try:
        made = whole_numbers(values, "ids")
    except BadRecord:
        assert any(type(one) is not int or abs(one) >= 2**63 for one in values)
    else:
        assert made.tolist() == values
        assert all(type(one) is int for one in values)
