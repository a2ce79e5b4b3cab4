"""What is read of a record, cleaned, dropped, kept, and to which split it goes."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxdata import open_dataset
from jaxdata.base.errors import InputError
from tests.converter.here import (
    column,
    decoded,
    objects,
    run,
    write_lines,
)

MODULE = """
def upper(record):
    if record["n"] == 1:
        return None
    if record["n"] == 2:
        return [record, {"text": "and more"}, {"no": "text"}]
    return {"text": record["text"].upper(), "url": record["n"]}

def fails(record):
    return helper(record)

def helper(record):
    return {"text": 1 / (record["n"] - 3)}

def wrong(record):
    return "text"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mine/my_cleaning.py"
    path.parent.mkdir()
    path.write_text(MODULE)
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_cleaning", raising=False)
    return path


def test_a_transform_makes_none_one_or_many(module: Path, tmp_path: Path) -> None:
    rows = [{"text": f"a{n}", "n": n} for n in range(4)]
    source = write_lines(tmp_path / "a.jsonl", [*objects(*rows), b"", b"{"])
    out = tmp_path / "out"
    report = run(source, out, transform="my_cleaning:upper", keep=["url"])
    assert decoded(out) == ["A0", "a2", "and more", "A3"]
    assert report.dropped == {"left out by the transform": 1}
    assert report.quarantined == {"no key 'text'": 1, "not JSON": 1}
    assert open_dataset(out).source("train", "web").kept(3) == {"url": 3}
    assert run(source, out, transform="my_cleaning:upper", keep=["url"]).already_complete
    module.write_text(MODULE + "# changed")
    with pytest.raises(InputError, match="different settings: transform_digest was '"):
        run(source, out, transform="my_cleaning:upper", keep=["url"])
    pq.write_table(pa.table({"text": ["x"], "n": [5], "raw": [b"\xff"]}), tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "table", transform="my_cleaning:upper")
    assert decoded(tmp_path / "table") == ["X"]


def test_a_transform_that_fails_says_where_and_how(module: Path, tmp_path: Path) -> None:
    rows = [{"text": f"a{n}", "n": n % 100} for n in range(150)]
    source = write_lines(tmp_path / "a.jsonl", [b"{", *objects(*rows)])
    with pytest.raises(InputError) as caught:
        run(source, tmp_path / "out", transform="my_cleaning:fails", unit_bytes=300)
    said = str(caught.value)
    assert f"{source}:5: the transform raised\n" in said
    assert 'my_cleaning.py", line 13, in helper' in said
    assert said.endswith("ZeroDivisionError: division by zero")
    assert "jaxdata" not in said.split("raised")[1]
    for name, says in [
        ("my_cleaning:wrong", r"a\.jsonl:2: the transform returned str 'text'; expected"),
        ("my_cleaning", 'expected "module:function"'),
        ("my_cleaning:none", r"my_cleaning\.py has no function 'none'"),
        ("not_there:f", "cannot be imported:\nModuleNotFoundError: No module named 'not_there'"),
        (lambda record: record, "cannot be imported by worker processes: move the function"),
    ]:
        with pytest.raises(InputError, match=says):
            run(source, tmp_path / "out", transform=name)
    assert not (tmp_path / "out/dataset.json").exists()


def test_splits_by_content_or_key_keep_together_what_is_alike(tmp_path: Path) -> None:
    rows = [{"text": f"document {n % 270}", "site": {"host": f"h{n % 40}"}} for n in range(300)]
    write_lines(tmp_path / "in/a.jsonl", objects(*rows, {"text": "lost"}))
    run(tmp_path / "in", tmp_path / "out", unit_bytes=3_000, split_ratio="train=8,val=1,test=1")
    found = [decoded(tmp_path / "out", f"{name}/web") for name in ("train", "val", "test")]
    assert sorted(text for texts in found for text in texts) == sorted(
        ["lost", *(row["text"] for row in rows)]
    )
    assert sum(len({*texts}) for texts in found) == 271
    assert 200 < len({*found[0]}) < 271
    report = run(tmp_path / "in", tmp_path / "key", split_ratio="a=1,b=1", split_by="site.host")
    places = [column(tmp_path / "key", "origin_row", f"{name}/web") for name in "ab"]
    one, two = ({rows[n - 1]["site"]["host"] for n in numbers} for numbers in places)
    assert (one & two, len(one | two)) == (set(), 40)
    assert (report.documents, report.quarantined) == (300, {"no key 'site.host'": 1})
