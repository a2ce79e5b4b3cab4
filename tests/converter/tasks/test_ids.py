"""Corpora that are tokenised already: ids, masks, labels and one value a token beside them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.converter.tasks import Dropped
from tests.converter.here import documents, objects, run_here, statistics, write_lines
from tests.converter.tasks.telling import BOS, EOD, task_of

NUMBERS = st.lists(st.sampled_from([0, BOS, 9, EOD]), max_size=5)


@given(
    st.lists(st.tuples(NUMBERS, st.lists(st.integers(0, 1), min_size=5, max_size=5)), min_size=1),
    st.sampled_from(["mask", "labels", None]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["list", "int64", "uint16", "int16", "bool"]),
)
def test_ids_masks_and_values_lie_side_by_side(
    given: list[tuple[list[int], list[int]]], masked: str | None, bos: bool, keep: bool, kind: str
) -> None:
    options: dict[str, Any] = {"bos": bos, "ids_end": "keep" if keep else "add"}
    options |= {f"{masked}_key": "m"} if masked else {}
    task = task_of("ids", **options, keep_per_token="w:float32,k:int16")
    assert task.masked == (masked is not None)
    assert task.keys == ("input_ids", *["m"] * bool(masked), "w", "k") == task.array_keys

    def as_kind(numbers: list[int], dtype: str) -> Any:
        return numbers if kind == "list" else np.array(numbers, dtype)

    expected, prepared = [], []
    for ids, every in given:
        flags = every[: len(ids)]
        labels = [i if flag else -100 for i, flag in zip(ids, flags, strict=True)]
        m = as_kind(flags, kind) if masked == "mask" else as_kind(labels, "int64")
        of_ids = as_kind(ids, "int64" if kind == "bool" else kind)
        record = {"input_ids": of_ids, "m": m, "w": [i / 2 for i in ids], "k": ids}
        (document,) = task.prepare(record).documents
        prepared.append(document)
        begin = [BOS] * (bos and ids[:1] != [BOS])
        end = [EOD] * (not keep and ids[-1:] != [EOD])
        tokens = [*begin, *ids, *end]
        mask = [*(0 for _ in begin), *flags, *(flags[-1] if flags else 1 for _ in end)]
        w = [*(0 for _ in begin), *(i / 2 for i in ids), *(0 for _ in end)]
        k = [*(0 for _ in begin), *ids, *(0 for _ in end)]
        expected.append((tokens, mask if masked else None, w, k) if tokens else "no id in it")
        assert (task.texts(document), task.weight(document)) == ((), len(ids))
        bare = ids[:-1] if not keep and ids[-1:] == [EOD] else ids
        assert task.hashed(document) == (np.array(bare, "<u4").tobytes(),)
    made = []
    for one in task.encode(prepared):
        if isinstance(one, Dropped):
            made.append(one.reason)
            continue
        ((tokens, mask, _, side),) = one
        arrays = tokens, mask, side["w"], side["k"]
        assert [tokens.dtype, side["w"].dtype, side["k"].dtype] == ["uint16", "float32", "int16"]
        made.append(tuple(each if each is None else each.tolist() for each in arrays))
    assert made == expected


BAD: list[tuple[str, Any]] = [
    ("'input_ids' holds an id outside the vocabulary of 400", {"input_ids": [0, 400]}),
    ("'input_ids' holds a negative id", {"input_ids": [3, -1]}),
    ("'input_ids' holds a number of more than 64 bits", {"input_ids": [2**63]}),
    ("'input_ids' holds what is not a whole number", {"input_ids": [1.0]}),
    ("'input_ids' holds what is not a whole number", {"input_ids": [True]}),
    ("'input_ids' holds what is not a whole number", {"input_ids": np.array([True])}),
    ("'input_ids' holds a negative id", {"input_ids": np.array([3, -1])}),
    ("'input_ids' is not a list", {"input_ids": "1 2"}),
    ("'input_ids' is null", {"input_ids": None}),
    ("no key 'input_ids'", {"ids": [1]}),
    ("'m' is not as long as 'input_ids'", {"m": [1]}),
    ("'m' holds other values than 0 and 1", {"m": [0, 2]}),
    ("'m' holds other values than 0 and 1", {"m": [0, -1]}),
    ("'w' is not as long as 'input_ids'", {"w": [0.5]}),
    ("'w' holds what is not a number", {"w": [1, "2"]}),
    ("'k' holds a number that int8 does not hold", {"k": [3, 400]}),
    ("'k' holds a number of more than 64 bits", {"k": [3, 2**70]}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "wrong"), BAD)
def test_what_are_no_ids_is_set_aside_with_the_reason(reason: str, wrong: dict[str, Any]) -> None:
    good = {"input_ids": [1, 2], "m": [0, 1], "w": [0.5, 2], "k": [3, -4]}
    task = task_of("ids", mask_key="m", keep_per_token="w:float32,k:int8")
    with pytest.raises(BadRecord) as caught:
        task.prepare(wrong if "ids" in wrong else good | wrong)
    assert caught.value.reason == reason
    labelled = task_of("ids", labels_key="m")
    with pytest.raises(BadRecord, match="a label that is neither -100 nor the id at its place"):
        labelled.prepare(good | {"m": [2, -100]})


def write_table(path: Path, ids: list[list[int]]) -> Path:
    """The weight of a token is its id."""
    table = pa.table({"input_ids": ids, "weight": pa.array(ids, pa.list_(pa.float32()))})
    pq.write_table(table, path, row_group_size=20)
    return path


def test_what_does_not_fit_the_task_is_refused(tmp_path: Path) -> None:
    table = write_table(tmp_path / "a.parquet", [[1]])
    rows = write_lines(tmp_path / "a.jsonl", objects({"input_ids": [1], "weight": [1]}))
    bad = write_lines(tmp_path / "bad.jsonl", objects({"input_ids": [1, -5]}))
    says: list[tuple[Path, dict[str, Any], str]] = [
        (rows, {"ids_key": "i"}, "no key 'i'; .*which has 'input_ids', .*with --ids-key"),
        (table, {"mask_key": "l"}, r"no column 'l'; it has .*: .*--mask-key"),
        (table, {"keep": "url"}, r"no column 'url'; it has .*: name one of these with --keep or"),
        (bad, {"on_error": "fail"}, r"bad\.jsonl:1: 'input_ids' holds a negative id"),
        (table, {"keep_per_token": "height"}, "has no column 'height'; it has 'input_ids', 'weig"),
        (table, {"keep_per_token": "weight,weight:int8"}, "keep_per_token names 'weight' twice"),
        (table, {"keep_per_token": "weight:bool"}, "'weight' is of bool; expected whole numbers"),
        (table, {"keep_per_token": "inputs"}, "side array 'inputs': batches have another array"),
        (rows, {"keep_per_token": "weight"}, r"as in weight:float32 \(lines of JSON, .* do not"),
    ]
    for file, options, message in says:
        with pytest.raises(InputError, match=message):
            run_here(file, tmp_path / "out", **{"task": "ids"} | options)


def halved(record: dict[str, Any]) -> dict[str, Any]:
    assert type(record["input_ids"]) is list
    return {"input_ids": [one // 2 for one in record["input_ids"]]}


HALVED = {"transform": f"{__name__}:halved"}


def test_lists_of_lines_tables_and_transforms_are_converted(tmp_path: Path) -> None:
    given = [[5, 7, 9], [], [1, EOD], [2, EOD, 3]]
    ended = [[5, 7, 9, EOD], [EOD], [1, EOD], [2, EOD, 3, EOD]]
    half = [[2, 3, 4, EOD], [EOD], [0, 128, EOD], [1, 128, 1, EOD]]
    rows = write_lines(tmp_path / "a.jsonl", objects(*({"input_ids": one} for one in given)))
    table = write_table(tmp_path / "a.parquet", given)
    for number, (file, options) in enumerate([(rows, {}), (table, {}), (table, HALVED)]):
        out = tmp_path / str(number)
        run_here(file, out, task="ids", **options)
        assert [one.tolist() for one in documents(out)] == (half if options else ended)
        counted = statistics(out)
        assert counted["text_bytes"] == counted["tokens_per_byte"] == 0
