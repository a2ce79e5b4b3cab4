"""Any change of a dataset's descriptions: an error of ours, or the tokens that were written."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.errors import JaxdataError
from jaxdata.format.verify import verify
from jaxdata.views.cut_ranges import TokenRanges
from jaxdata.views.source_view import SourceView
from jaxdata.views.writing import write_views
from tests.converter.test_convert import run as convert
from tests.converter.test_convert import write_lines
from tests.format.strangers import little_memory, read_all, seal

Tokens = dict[str, list[list[int]]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers with masks; text from archives, in two generations, with kept fields; side arrays."""
    folder = tmp_path_factory.mktemp("mutations")
    (folder / "in").mkdir()
    for part in range(2):
        lines = [_record(number, "text") for number in range(part * 9, part * 9 + 9)]
        file = write_lines(folder / f"{part}.jsonl", lines)
        with tarfile.open(folder / "in" / f"{part}.tar", "w") as archive:
            archive.add(file, file.name)
        options = {"keep": ("url",), "append": True, "record_tokens": 16, "unit_bytes": 300}
        convert(folder / "in", folder / "out", source="web", tokenizer="bytes", **options)
    pairs = write_lines(
        folder / "sft.jsonl", [_record(n, "prompt", "completion") for n in range(5)]
    )
    options = {"task": "sft", "record_tokens": 16, "tokenizer": "bytes"}
    convert(pairs, folder / "out", source="sft", **options)
    ids = [json.dumps({"input_ids": [n] * 20, "weight": [n] * 20}).encode() for n in range(5)]
    options = {"task": "ids", "keep_per_token": "weight:int8", "record_tokens": 16}
    convert(
        write_lines(folder / "ids.jsonl", ids),
        folder / "out",
        source="ids",
        tokenizer="bytes",
        **options,
    )
    view = {"dropped": np.array([1, 4]), "reasons": ["near"], "survivors": ["train/web"]}
    of_others = {"survivor_source": np.array([0, -1], np.int32), "survivor": np.array([2, -1])}
    masked = TokenRanges.of(*np.array([[0, 3], [0, 2], [2, 9]]))
    ranges = {"masked": masked, "cut": TokenRanges.of(*np.array([[2], [3], [6]]))}
    ranges["cut"].first[:] = 0
    views = {"train/sft": SourceView(documents=5, **ranges, **view, **of_others)}
    write_views(folder / "out", "d1", views, parameters={"command": "dedup"}, made_of={})
    return folder / "out"


def _record(number: int, *keys: str) -> bytes:
    text = f"{number} words " * (1 + number % 5)
    return json.dumps(dict.fromkeys(keys, text) | {"url": f"http://{number}"}).encode()


@pytest.fixture(scope="module")
def written(dataset: Path) -> Tokens:
    with tempfile.TemporaryDirectory() as folder:
        return read_all(shutil.copytree(dataset, Path(folder) / "d"))


def places(value: Any) -> list[tuple[Any, ...]]:
    """The path of every value in nested ones."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found: list[tuple[Any, ...]] = []
    for key, inner in items:
        found.append((key,))
        if isinstance(inner, (dict, list)):
            found += [(key, *rest) for rest in places(inner)]
    return found


NUMBERS = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([2**16, 2**31, 2**32, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30]),
)
NAMES = st.sampled_from(
    [
        "",
        ".",
        "..",
        "../x",
        "/dev/zero",
        "a/../../b",
        "/etc/passwd",
        "train/web",
        "index",
        "a\0",
        "é",
    ]
)
VALUES = st.one_of(
    NUMBERS,
    NAMES,
    st.sampled_from([None, True, 0.5, float("nan"), float("inf"), [], {}, [[]], "uint32", "bytes"]),
    st.lists(NUMBERS, max_size=3),
    st.dictionaries(NAMES, NUMBERS, max_size=3),
)


def change(fields: Any, place: tuple[Any, ...], what: str, value: Any) -> None:
    """Set a value, remove it, or put another one of the same file in its place."""
    *before, last = place
    for key in before:
        fields = fields[key]
    if what == "remove":
        del fields[last]
    elif what == "rename" and isinstance(fields, dict):
        fields[str(value)] = fields.pop(last)
    elif what == "double" and isinstance(fields, list):
        fields.append(fields[last])
    else:
        fields[last] = value


def check(dataset: Path, written: Tokens) -> None:
    """Read everything: what comes without an error of ours must be what was written."""
    with little_memory():
        with suppress(JaxdataError):
            str(verify(dataset, threads=1))
        with suppress(JaxdataError):
            found = read_all(dataset).values()  # under any name
            others = [tokens for tokens in found if tokens and tokens not in written.values()]
            assert not others, f"{len(others)} sources have other tokens"


@pytest.fixture(scope="module")
def copy(dataset: Path) -> Path:
    return shutil.copytree(dataset, dataset.with_name("copy"))


@contextmanager
def restored(copy: Path) -> Iterator[None]:
    """Put every file back, and remove what was added."""
    before = {path: path.read_bytes() for path in descriptions(copy)}
    try:
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)
        shutil.rmtree(copy / "plans", ignore_errors=True)


def descriptions(copy: Path) -> list[Path]:
    """All files but shards."""
    return sorted(p for p in copy.rglob("*") if p.is_file() and p.suffix != ".array_record")


def mutate(data: st.DataObject, fields: Any, most: int = 3) -> Any:
    """Make some changes of nested values."""
    for _ in range(data.draw(st.integers(1, most))):
        where = data.draw(st.sampled_from(places(fields)))
        what = data.draw(st.sampled_from(["set", "set", "remove", "rename", "double"]))
        change(fields, where, what, deepcopy(data.draw(VALUES)))
    return fields


@settings(max_examples=30)
@given(data=st.data(), checksum=st.sampled_from(["right", "wrong", "none"]))
def test_any_manifest(copy: Path, written: Tokens, data: st.DataObject, checksum: str) -> None:
    file = copy / "dataset.json"
    with restored(copy):
        fields = mutate(data, json.loads(file.read_bytes()))
        if checksum == "none":
            fields.pop("sha256", None)
        file.write_bytes(seal(fields) if checksum == "right" else json.dumps(fields).encode())
        check(copy, written)


@settings(max_examples=30)
@given(data=st.data())
def test_any_description_of_a_column(copy: Path, written: Tokens, data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(sorted(copy.rglob("zarr.json"))))
    with restored(copy):
        file.write_text(json.dumps(mutate(data, json.loads(file.read_bytes()), most=2)))
        check(copy, written)


@settings(max_examples=30)
@given(data=st.data())
def test_any_bytes_of_an_index_or_a_description(
    copy: Path, written: Tokens, data: st.DataObject
) -> None:
    """Bits flipped, ends cut off or added, in whatever is no shard; plans are made before."""
    with restored(copy):
        if data.draw(st.booleans()):
            read_all(copy)
        file = data.draw(st.sampled_from(descriptions(copy)))
        changed = bytearray(file.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
        end = data.draw(st.sampled_from([0, 0, 1, 8, len(changed)]))
        file.write_bytes(bytes(changed[: len(changed) - end]) + data.draw(st.binary(max_size=9)))
        check(copy, written)
