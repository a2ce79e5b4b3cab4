"""What is read of a record, cleaned, dropped, kept, and to which split it goes."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxdata import open_dataset
from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from tests.commands import run as command
from tests.converter.here import (
    column,
    decoded,
    manifest,
    objects,
    quarantine,
    records,
    run,
    statistics,
    write_lines,
)


def check_the_law(output: Path) -> None:
    """Every record of the input is accounted for."""
    entries = manifest(output)["sources"].values()
    told = next(iter(entries))["statistics"]
    left = sum(told["quarantined"].values()) + sum(told["dropped"].values()) + told["blank"]
    made = sum(entry["documents"] for entry in entries)
    assert made + left == told["records"] + told["added"]


def test_keys_within_objects_and_columns(tmp_path: Path) -> None:
    rows = [{"data": {"text": "a"}}, {"data": 1}, {"data.text": "b"}, {"data": {"text": None}}]
    source = write_lines(tmp_path / "a.jsonl", objects(*rows))
    run(source, tmp_path / "out", text_key="data.text")
    assert decoded(tmp_path / "out") == ["a", "b"] == list(texts(source, "data.text"))
    reasons = [one["reason"] for one in quarantine(tmp_path / "out")]
    assert reasons == ["no key 'data.text'", "'data.text' is null"]
    table = pa.table({"data": [{"text": "a", "n": 1}, {"text": "é", "n": 2}], "x": [b"\xff", b""]})
    pq.write_table(table, tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "table", text_key="data.text", unit_bytes=1)
    assert decoded(tmp_path / "table") == ["a", "é"]
    with pytest.raises(InputError, match=r"no column 'data\.body'; it has 'data', 'x'"):
        run(tmp_path / "a.parquet", tmp_path / "more", text_key="data.body")


def test_the_texts_of_conversations_are_those_of_all_messages(tmp_path: Path) -> None:
    rows = [{"messages": [{"content": "a"}, {"content": "b"}]}, {"messages": {"content": "c"}}]
    bad = [{"messages": [{"content": None}]}, {"messages": ["a"]}, {"messages": 1}, {"text": "a"}]
    source = write_lines(tmp_path / "a.jsonl", objects(*rows, *bad))
    assert list(texts(source, "messages.content")) == ["a\n\nb", "c"]
    assert list(texts(source, "messages.content", text_joiner="|")) == ["a|b", "c"]
    with pytest.raises(InputError, match=r"'messages'. Are .*, or convert conversations with"):
        run(write_lines(tmp_path / "b.jsonl", objects(*rows)), tmp_path / "out")


def test_several_keys_are_joined(tmp_path: Path) -> None:
    rows = [{"title": "A", "body": "a"}, {"title": None, "body": "b"}, {"title": 1}, {"x": 1}]
    source = write_lines(tmp_path / "a.jsonl", objects(*rows))
    run(source, tmp_path / "out", text_key="title,body")
    assert decoded(tmp_path / "out") == ["A\n\na", "b"] == list(texts(source, "title,body"))
    reasons = [one["reason"] for one in quarantine(tmp_path / "out")]
    assert reasons == ["'title' is not a string", "no key 'title'"]


def test_kept_fields_lie_beside_the_origin(tmp_path: Path) -> None:
    rows = [{"text": str(i), "url": f"u{i}\n", "meta": {"lang": "é"}} for i in range(50)]
    write_lines(tmp_path / "in/a.jsonl", objects(*rows, {"text": "last"}))
    run(tmp_path / "in", tmp_path / "out", keep=["url", "meta.lang", "meta"], unit_bytes=500)
    docs = open_dataset(tmp_path / "out").source("train", "web")
    assert docs.kept(7) == {"url": "u7\n", "meta.lang": "é", "meta": {"lang": "é"}}
    assert docs.kept(-1) == docs.kept(50) == {"url": None, "meta.lang": None, "meta": None}
    assert docs.origin(7) == ("a.jsonl", 8)


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
    check_the_law(out)
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


def test_documents_too_short_or_long_are_dropped_and_counted(tmp_path: Path) -> None:
    words = ["a" * n for n in range(10)]
    source, out = write_lines(tmp_path / "a.jsonl", records(*words, "éé")), tmp_path / "out"
    report = run(source, out, min_chars=2, max_chars=8, min_tokens=4, max_tokens=7)
    assert decoded(out) == [*words[3:7], "éé"]
    assert report.dropped == {
        "longer than 7 tokens": 2,
        "longer than 8 characters": 1,
        "shorter than 2 characters": 2,
        "shorter than 4 tokens": 1,
    }
    assert "dropped 6 records (" in str(report)
    check_the_law(out)


def test_splits_by_content_or_key_keep_together_what_is_alike(tmp_path: Path) -> None:
    rows = [{"text": f"document {n % 270}", "site": {"host": f"h{n % 40}"}} for n in range(300)]
    write_lines(tmp_path / "in/a.jsonl", objects(*rows))
    names = ("train", "val", "test")
    ratio = {"split_ratio": "train=8,val=1,test=1"}
    run(tmp_path / "in", tmp_path / "out", unit_bytes=3_000, **ratio)
    found = {name: decoded(tmp_path / "out", f"{name}/web") for name in names}
    together = [text for name in names for text in found[name]]
    assert sorted(together) == sorted(row["text"] for row in rows)
    assert sum(len({*texts}) for texts in found.values()) == 270
    assert 200 < len(found["train"]) < 270
    check_the_law(tmp_path / "out")
    write_lines(
        tmp_path / "in/b.jsonl", objects({"text": "x"}, *({"text": f"{n}"} for n in range(50)))
    )
    run(tmp_path / "in", tmp_path / "more", **ratio)
    for name in names:
        grown = decoded(tmp_path / "more", f"{name}/web")
        assert grown[: len(found[name])] == found[name]
    report = run(tmp_path / "in", tmp_path / "key", split_ratio="a=1,b=1", split_by="site.host")
    places = [column(tmp_path / "key", "origin_row", f"{name}/web") for name in "ab"]
    one, two = ({rows[n - 1]["site"]["host"] for n in numbers} for numbers in places)
    assert (one & two, len(one | two)) == (set(), 40)
    assert report.quarantined == {"no key 'site.host'": 51}
    assert report.documents == 300


@pytest.mark.parametrize(
    ("ends", "unit_bytes"),
    [((91, 96, 101), 200), ((91, 96, 101), 2**26), ((4_500, 4_750, 5_000), 2**26)],
)
def test_contiguous_splits_are_those_of_megatron(
    tmp_path: Path, ends: tuple[int, int, int], unit_bytes: int
) -> None:
    """Round(0.90 * documents) are train, and so on: within a unit of several batches, too."""
    words = [f"document {n}" for n in range(ends[2])]
    source, out = write_lines(tmp_path / "a.jsonl", records(*words)), tmp_path / "out"
    options = {"split_ratio": "train=90,val=5,test=5", "split_contiguous": True}
    report = run(source, out, unit_bytes=unit_bytes, **options)
    names = [f"{name}/web" for name in ("train", "val", "test")]
    found = [decoded(out, name) for name in names]
    assert found == [words[: ends[0]], words[ends[0] : ends[1]], words[ends[1] :]]
    assert report.documents == len(words)
    assert open_dataset(out).source("val", "web").origin(0) == ("a.jsonl", ends[0] + 1)
    sizes = [statistics(out, name)["text_bytes"] for name in names]
    assert sizes == [sum(map(len, texts)) for texts in found]
    named = {s["name"] for e in manifest(out)["sources"].values() for s in e["shards"]}
    assert named == {str(path.relative_to(out)) for path in out.rglob("*.array_record")}
    assert run(source, out, unit_bytes=unit_bytes, **options).already_complete
    check_the_law(out)


def test_the_command_takes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"t": f"A{n} @-@ b", "u": {"v": n}} for n in range(20)]
    write_lines(tmp_path / "a.jsonl", objects(*rows))
    (tmp_path / "list").write_text("*.jsonl")
    (tmp_path / "mine_here.py").write_text("def f(r):\n    return {'a': r['t'], 'b': 'c', **r}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    options = "--source s --tokenizer bytes --output out --files-from list --keep u.v,u"
    options += " --text-key a,b --text-joiner \\n --transform mine_here:f --wikitext --min-chars 3"
    options += " --split-ratio train=1,val=1 --normalize nfc"
    command("convert", *options.split())
    found = decoded(tmp_path / "out", "train/s") + decoded(tmp_path / "out", "val/s")
    assert sorted(found) == sorted(f"A{n}-b\nc" for n in range(20))
    docs = open_dataset(tmp_path / "out").source("val", "s")
    assert docs.kept(0)["u.v"] == docs.kept(0)["u"]["v"]
