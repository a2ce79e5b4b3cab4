"""Any change of a receipt: the conversion goes on to the same documents, or an error of ours."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.converter import conversion_run
from jaxdata.errors import DatasetError, JaxdataError
from jaxdata.format.checksums import checked_bytes, with_checksum
from tests.converter.test_convert import records, write_lines
from tests.converter.test_convert import run as convert
from tests.format.strangers import little_memory, read_all, set_key, set_value
from tests.format.test_mutations import mutate

Change = Callable[[dict[str, Any]], object]
OPTIONS = {"tokenizer": "bytes", "unit_bytes": 60, "keep": ("url",)}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conversion that was killed before it published its units, one record of them bad."""
    folder = tmp_path_factory.mktemp("receipts")
    lines = [json.dumps({"text": "a b " * k, "url": f"u{k}"}).encode() for k in range(1, 9)]
    source = write_lines(folder / "a.jsonl", [*lines, b"{bad", *records("c")])
    convert(source, folder / "whole", **OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion_run, "publish", None)
        with pytest.raises(TypeError):
            convert(source, folder / "out", **OPTIONS)
    return folder


def finish(begun: Path, receipt: Path, content: bytes) -> Any:
    """Go on with a receipt of other content; the tokens of the documents."""
    with tempfile.TemporaryDirectory() as folder:
        output = shutil.copytree(begun / "out", Path(folder) / "out")
        (output / receipt.relative_to(begun / "out")).write_bytes(content)
        with little_memory():
            convert(begun / "a.jsonl", output, **OPTIONS)
        return read_all(output)


def header_of(receipt: Path) -> tuple[dict[str, Any], bytes]:
    """The line of JSON in a receipt, and the columns after it."""
    line, columns = (checked_bytes(receipt.read_bytes()) or b"").split(b"\n", 1)
    return json.loads(line), columns


def sealed(header: dict[str, Any], columns: bytes) -> bytes:
    return with_checksum(json.dumps(header).encode() + b"\n" + columns)


NAME = "train/web"
CHANGES: dict[str, Change] = {
    "a source outside": set_key("outputs", NAME, to="../../web"),
    "another source": set_key("outputs", NAME, to="train/code"),
    "a shard outside": set_value("outputs", NAME, "shard", "name", to="../../x.array_record"),
    "a shard of another source": set_value("outputs", NAME, "shard", "name", to="train/code/x"),
    "documents beyond memory": set_value("outputs", NAME, "shard", "documents", to=2**50),
    "fewer documents": set_value("outputs", NAME, "shard", "documents", to=0),
    "other tokens": set_value("outputs", NAME, "shard", "tokens", to=1),
    "no parts": set_value("records", to=[]),
    "members of no part": set_value("members", to=[[9, [[0, ["a", "line", 1]]]]]),
    "a side array": lambda header: header["outputs"][NAME].update(
        sides={"weight": header["outputs"][NAME]["shard"]}
    ),
    "nothing": lambda header: header.clear(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_receipt_that_cannot_be_is_named(begun: Path, name: str) -> None:
    """Its checksum is right."""
    receipt = min(begun.glob("out/train/web/work/*.receipt"))
    header, columns = header_of(receipt)
    CHANGES[name](header)
    with pytest.raises(DatasetError) as error:
        finish(begun, receipt, sealed(header, columns))
    assert str(error.value).endswith(
        f"/work/{receipt.name} is damaged, or of another version of jaxdata: delete it and run the "
        "same command again, which repeats that part of the work"
    )


@settings(max_examples=50)
@given(data=st.data(), with_right_checksum=st.booleans())
def test_any_receipt(begun: Path, data: st.DataObject, with_right_checksum: bool) -> None:
    receipt = data.draw(st.sampled_from(sorted(begun.glob("out/train/web/work/*.receipt"))))
    header, columns = header_of(receipt)
    content = sealed(mutate(data, header), columns)
    if not with_right_checksum:
        content = content[:-32] + receipt.read_bytes()[-32:]
    with suppress(JaxdataError):
        found, whole = finish(begun, receipt, content)[NAME], read_all(begun / "whole")[NAME]
        if with_right_checksum:  # who can make one can say that a unit gave no document
            following = iter(whole)
            assert all(tokens in following for tokens in found)
        else:
            assert found == whole
