"""Rows as examples of TensorFlow: whoever knows the wire format reads them, MaxText as well."""

from __future__ import annotations

from pathlib import Path

import grain
import numpy as np

from jaxdata.foreign.record_formats import decode_example, encode_example
from tests.foreign.materialize.conftest import Row, loaded, records, run

PAD = 1_000_000  # a tokenizer's own idea of padding


def test_examples_are_read_by_whoever_knows_the_wire_format(config: str, tmp_path: Path) -> None:
    options = ["--output", str(tmp_path), "--format", "tf_example"]
    run("--config", config, *options)
    expected = loaded(config)
    for record, row in zip(records(tmp_path), expected, strict=True):
        found = parse_example(record)
        assert found == {name: array.astype(int).tolist() for name, array in row.items()}


def parse_example(data: bytes) -> dict[str, list[int]]:
    """A `tf.train.Example` of int64 lists by hand: only varints and lengths, no protobuf."""
    found = {}
    (features,) = [value for _, value in fields_of(data)]
    for _, entry in fields_of(features):
        (_, key), (_, feature) = fields_of(entry)
        ((kind, int64_list),) = fields_of(feature)
        assert kind == 3
        values: list[int] = []
        for _, packed in fields_of(int64_list):
            values += varints(packed)
        found[key.decode()] = values
    return found


def fields_of(data: bytes) -> list[tuple[int, bytes]]:
    """(number, bytes) of every field of a message in which all have a length."""
    found, at = [], 0
    while at < len(data):
        tag, at = varint(data, at)
        size, at = varint(data, at)
        assert tag & 7 == 2
        found.append((tag >> 3, data[at : at + size]))
        at += size
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
        shift += 7


def varints(data: bytes) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = varint(data, at)
        values.append(value - 2**64 if value >= 2**63 else value)
    return values


def test_the_bytes_of_an_example() -> None:
    numbers = b"\x05\xac\x02" + b"\xff" * 9 + b"\x01"  # 5, 300, -1 as varints
    entry = b"\x0a\x06inputs\x12\x11\x1a\x0f\x0a\x0d" + numbers
    expected = b"\x0a\x1d\x0a\x1b" + entry
    assert encode_example({"inputs": np.array([5, 300, -1])}) == expected
    floats = encode_example({"mask": np.array([0.5, 1], np.float32)})
    assert decode_example(floats)["mask"].tolist() == [0.5, 1]


def test_maxtext_makes_the_same_batches_of_it(config: str, tmp_path: Path) -> None:
    """Its steps for tokenised data, as version 0.2.5 does them without packing."""
    options = ["--format", "tf_example", "--layout", "maxtext", "--shard-rows", "40"]
    options += ["--pack.strategy", "concat", "--pack.overlap", "0", "--workers", "1"]
    run("--config", config, "--output", str(tmp_path), *options)
    files = sorted(map(str, tmp_path.glob("*.array_record")))
    assert len(files) > 1

    def prepared(record: bytes) -> Row:
        column = np.array(parse_example(record)["text"], np.int32)  # what it reads by default
        padded = np.pad(column, (0, 64 - len(column)), constant_values=PAD)
        targets = np.append(padded[1:], PAD)
        return {"inputs": padded, "targets": targets, "loss": targets != PAD}

    found = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files)).map(prepared)
    expected = loaded(config, **{"pack.strategy": "concat", "pack.overlap": 0})
    assert len(found) == len(expected)
    for row, ours in zip(found, expected, strict=True):
        filled = ours["segment_ids"] > 0
        assert np.array_equal(row["inputs"][filled], ours["inputs"][filled])
        inside = ours["loss_mask"].copy()
        inside[-1] = False  # it has no target for the last slot
        assert np.array_equal(row["targets"][inside], ours["targets"][inside])
        assert row["loss"].sum() == max(0, filled.sum() - 1)
