"""What is read of a record, cleaned, dropped, kept, and to which split it goes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxdata import MissingExtra, open_dataset
from jaxdata.converter import texts
from jaxdata.converter.filters import without_wikitext_marks
from jaxdata.converter.splits import Ratio, read_ratio
from jaxdata.errors import InputError
from jaxdata.installing import install_command
from tests.converter.test_convert import decoded, manifest, quarantine, run, write_lines


def statistics(output: Path, source: str = "train/web") -> dict[str, Any]:
    return manifest(output)["sources"][source]["statistics"]


def check_the_law(output: Path) -> None:
    """Every record of the input is accounted for."""
    entries = manifest(output)["sources"].values()
    told = next(iter(entries))["statistics"]
    left = sum(told["quarantined"].values()) + sum(told["dropped"].values()) + told["blank"]
    documents = sum(entry["documents"] for entry in entries)
    assert documents + left == told["records"] + told["added"]


def objects(*fields: Any) -> list[bytes]:
    return [json.dumps(one).encode() for one in fields]


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


def test_several_keys_are_joined(tmp_path: Path) -> None:
    rows = [
        {"title": "A", "body": "a"},
        {"title": None, "body": "b"},
        {"body": "c"},
        {"title": 1, "body": "d"},
        {"x": 1},
    ]
    source = write_lines(tmp_path / "a.jsonl", objects(*rows))
    run(source, tmp_path / "out", text_key="title,body")
    assert decoded(tmp_path / "out") == ["A\n\na", "b", "c"] == list(texts(source, "title,body"))
    reasons = [one["reason"] for one in quarantine(tmp_path / "out")]
    assert reasons == ["'title' is not a string", "no key 'title'"]
    run(source, tmp_path / "line", text_key="title, body", text_joiner=": ")
    assert decoded(tmp_path / "line")[0] == "A: a"


def test_kept_fields_lie_beside_the_origin(tmp_path: Path) -> None:
    rows = [{"text": str(i), "url": f"u{i}\n", "meta": {"lang": "é"}} for i in range(50)]
    write_lines(tmp_path / "in/a.jsonl", objects(*rows, {"text": "last"}))
    run(tmp_path / "in", tmp_path / "out", keep=["url", "meta.lang", "meta"], unit_bytes=500)
    docs = open_dataset(tmp_path / "out").source("train", "web")
    assert docs.kept(7) == {"url": "u7\n", "meta.lang": "é", "meta": {"lang": "é"}}
    assert docs.kept(-1) == docs.kept(50) == {"url": None, "meta.lang": None, "meta": None}
    assert docs.origin(7) == ("a.jsonl", 8)
    with pytest.raises(IndexError):
        docs.kept(51)
    run(tmp_path / "in", tmp_path / "plain")
    assert open_dataset(tmp_path / "plain").source("train", "web").kept(7) == {}
    kept = tmp_path / "plain/train/web/index/kept"
    assert not kept.exists()


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
        run(source, tmp_path / "out", transform="my_cleaning:fails", unit_bytes=300, workers=2)
    said = str(caught.value)
    assert f"{source}:5: the transform raised\n" in said
    assert 'my_cleaning.py", line 13, in helper' in said
    assert said.endswith("ZeroDivisionError: division by zero")
    assert "jaxdata" not in said.split("raised")[1]
    with pytest.raises(
        InputError, match=r"a\.jsonl:2: the transform returned str 'text'; expected"
    ):
        run(source, tmp_path / "wrong", transform="my_cleaning:wrong")


def test_a_transform_that_cannot_be_found_says_so(module: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", objects({"text": "a"}))
    for name, says in [
        ("my_cleaning", 'expected "module:function"'),
        ("my_cleaning:none", r"my_cleaning\.py has no function 'none'"),
        ("not_there:f", "cannot be imported:\nModuleNotFoundError: No module named 'not_there'"),
        (lambda record: record, "cannot be imported by worker processes: move the function"),
    ]:
        with pytest.raises(InputError, match=says):
            run(source, tmp_path / "out", transform=name)
    assert not (tmp_path / "out").exists()


def test_cleaning(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", objects({"text": "sch\u00c3\u00b6n @,@ e\u0301 ﬁ"}))
    for options, expected in [
        ({}, "schÃ¶n @,@ e\u0301 ﬁ"),
        ({"ftfy": True}, "schön @,@ e\u0301 fi"),
        ({"normalize": "NFC"}, "schÃ¶n @,@ é ﬁ"),
        ({"normalize": "NFKC", "ftfy": True}, "schön @,@ é fi"),
        ({"wikitext": True}, "schÃ¶n,e\u0301 ﬁ"),
    ]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        run(source, out, **options)
        assert decoded(out) == [expected]


def test_ftfy_that_is_missing_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "a.jsonl", objects({"text": "a"}))
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("clean"))):
        run(source, tmp_path / "out", ftfy=True)


def test_wikitext() -> None:
    line = ' = = Later = = \n The " band \'s " 3 @.@ 5 @-@ year ( 1 @,@ 000 km ) tour ; ended . \n'
    assert without_wikitext_marks(line) == (
        ' == Later ==\nThe "band\'s" 3.5-year (1,000 km) tour; ended.\n'
    )


def test_documents_too_short_or_long_are_dropped_and_counted(tmp_path: Path) -> None:
    words = ["a" * n for n in range(10)]
    source = write_lines(tmp_path / "a.jsonl", objects(*({"text": w} for w in [*words, "éé"])))
    out = tmp_path / "out"
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
    with pytest.raises(InputError, match="no document is left: 11 shorter than 99 characters"):
        run(source, tmp_path / "none", min_chars=99)


def test_splits_by_content_are_stable_and_keep_duplicates_together(tmp_path: Path) -> None:
    words = [f"document {n % 900}" for n in range(1_000)]
    write_lines(tmp_path / "in/a.jsonl", objects(*({"text": word} for word in words)))
    ratio = {"split_ratio": "train=8,val=1,test=1"}
    run(tmp_path / "in", tmp_path / "out", unit_bytes=3_000, **ratio)
    names = ("train", "val", "test")
    found = {name: decoded(tmp_path / "out", f"{name}/web") for name in names}
    assert sum(map(len, found.values())) == 1_000
    assert Counter(words) == Counter(word for name in names for word in found[name])
    assert not set(found["train"]) & set(found["val"])
    assert 650 < len(found["train"]) < 850
    assert 60 < len(found["val"]) < 140
    check_the_law(tmp_path / "out")
    assert run(tmp_path / "in", tmp_path / "out", unit_bytes=3_000, **ratio).already_complete
    write_lines(tmp_path / "in/b.jsonl", objects(*({"text": f"new {n}"} for n in range(100))))
    run(tmp_path / "in", tmp_path / "more", **ratio)
    for name in names:
        grown = decoded(tmp_path / "more", f"{name}/web")
        assert grown[: len(found[name])] == found[name]


def test_a_split_by_content_never_changes() -> None:
    ratio = Ratio(read_ratio("train=98,val=1,test=1"))
    counts = Counter(ratio.of_texts([f"text {n}"]) for n in range(10_000))
    assert counts == {"train": 9_785, "val": 114, "test": 101}
    assert ratio.of_texts(["text 50"]) == "train"


def test_splits_by_key(tmp_path: Path) -> None:
    rows = [{"text": str(n), "site": {"host": f"h{n % 40}"}} for n in range(400)]
    source = write_lines(tmp_path / "a.jsonl", objects(*rows, {"text": "x"}))
    out = tmp_path / "out"
    report = run(source, out, split_ratio="a=1,b=1", split_by="site.host")
    one, two = (decoded(out, f"{name}/web") for name in ("a", "b"))
    assert not {int(n) % 40 for n in one} & {int(n) % 40 for n in two}
    assert len(one) + len(two) == 400
    assert report.quarantined == {"no key 'site.host'": 1}


@pytest.mark.parametrize("unit_bytes", [200, 2**26])
def test_contiguous_splits_are_those_of_megatron(tmp_path: Path, unit_bytes: int) -> None:
    words = [f"document {n}" for n in range(101)]
    source = write_lines(tmp_path / "a.jsonl", objects(*({"text": word} for word in words)))
    options = {"split_ratio": "train=90,val=5,test=5", "split_contiguous": True}
    options["unit_bytes"] = unit_bytes
    out = tmp_path / "out"
    report = run(source, out, **options)
    found = [decoded(out, f"{name}/web") for name in ("train", "val", "test")]
    assert found == [words[:91], words[91:96], words[96:]]  # round(0.90 * 101), round(0.95 * 101)
    assert report.documents == 101
    docs = open_dataset(out).source("val", "web")
    assert docs.origin(0) == ("a.jsonl", 92)
    sizes = [statistics(out, f"{name}/web")["text_bytes"] for name in ("train", "val", "test")]
    assert sizes == [sum(map(len, texts)) for texts in found]
    named = {s["name"] for e in manifest(out)["sources"].values() for s in e["shards"]}
    there = {str(path.relative_to(out)) for path in out.rglob("*.array_record")}
    assert named == there
    assert run(source, out, **options).already_complete
    check_the_law(out)
    with pytest.raises(InputError, match="--append cannot be combined with --split-contiguous"):
        run(source, out, append=True, **options)


def test_a_border_within_a_unit_of_many_batches(tmp_path: Path) -> None:
    words = [f"document {n}" for n in range(5_000)]
    source = write_lines(tmp_path / "a.jsonl", objects(*({"text": word} for word in words)))
    run(source, tmp_path / "out", split_ratio="train=1,val=1", split_contiguous=True)
    found = [decoded(tmp_path / "out", f"{name}/web") for name in ("train", "val")]
    assert found == [words[:2_500], words[2_500:]]


def test_splits_that_cannot_be_say_so(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", objects({"text": "a"}))
    for options, says in [
        ({"split_ratio": "train"}, "'train' is not a split and its share"),
        ({"split_ratio": "a=1,a=2"}, "'a=2' is not a split and its share"),
        ({"split_ratio": "a=0"}, "add up to zero"),
        ({"split_ratio": "a/b=1"}, "--split 'a/b' has a '/'"),
        ({"split_ratio": "a=1", "split": "val"}, "--split 'val' cannot be combined"),
        ({"split_by": "x"}, "require --split-ratio"),
        ({"split_ratio": "a=1", "split_by": "x", "split_contiguous": True}, "give one"),
    ]:
        with pytest.raises(InputError, match=says):
            run(source, tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"text_joiner": " "}, r"text_joiner was '\\n\\n', is ' '"),
        ({"keep": ["url"]}, r"keep was \[\], is \['url'\]"),
        ({"ftfy": True}, "ftfy was False, is True"),
        ({"normalize": "NFC"}, "normalize was None, is 'NFC'"),
        ({"wikitext": True}, "wikitext was False, is True"),
        ({"min_chars": 1}, "min_chars was None, is 1"),
        ({"max_tokens": 99}, "max_tokens was None, is 99"),
        ({"split_ratio": "train=1"}, "split_ratio was None, is 'train=1'"),
        ({"max_record_bytes": 99}, "max_record_bytes was 268435456, is 99"),
    ],
)
def test_a_resume_with_other_options_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    lines = objects({"text": "one", "url": 1}, {"text": "two"})
    source = write_lines(tmp_path / "a.jsonl", [*lines, b"{"])
    with pytest.raises(InputError, match="not JSON"):
        run(source, tmp_path / "out", on_error="fail", unit_bytes=10)
    with pytest.raises(InputError, match=f"unfinished conversion with different settings: {says}"):
        run(source, tmp_path / "out", unit_bytes=10, **change)
    run(source, tmp_path / "out", unit_bytes=10)
    with pytest.raises(InputError, match=f"different settings: {says}"):
        run(source, tmp_path / "out", unit_bytes=10, **change)


def test_the_command_takes_the_same(tmp_path: Path) -> None:
    rows = [{"t": f"A{n} @-@ b", "u": {"v": n}} for n in range(20)]
    write_lines(tmp_path / "a.jsonl", objects(*rows))
    (tmp_path / "list").write_text("*.jsonl")
    (tmp_path / "mine.py").write_text("def f(r):\n    return {'a': r['t'], 'b': 'c', **r}")
    options = "--source s --tokenizer bytes --output out --files-from list --keep u.v,u"
    options += " --text-key a,b --text-joiner \\n --transform mine:f --wikitext --min-chars 3"
    options += " --split-ratio train=1,val=1 --normalize nfc"
    command = [sys.executable, "-m", "jaxdata", "convert", *options.split()]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    found = decoded(tmp_path / "out", "train/s") + decoded(tmp_path / "out", "val/s")
    assert sorted(found) == sorted(f"A{n}-b\nc" for n in range(20))
    docs = open_dataset(tmp_path / "out").source("val", "s")
    assert docs.kept(0)["u.v"] == docs.kept(0)["u"]["v"]
