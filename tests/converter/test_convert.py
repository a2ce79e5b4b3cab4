"""Whole conversions, read back with array_record and numpy alone.

And by encoders: the dataset is the library's, to the bit, whatever they do.
"""

import base64
import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from jaxdata import open_dataset
from jaxdata.base.errors import InputError
from jaxdata.converter import texts
from jaxdata.converter.conversion_run import Conversion
from jaxdata.tokenizers.encoders import choice
from tests.converter import here
from tests.converter.here import decoded, objects, records, run, run_here, tree, write_lines
from tests.tokenizers.made import double, settings


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Every format, good and bad lines, and a unit size that cuts most files."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abc é\n", k=chance.randrange(200))) for _ in range(300)]
    folder = tmp_path / "corpus"
    write_lines(folder / "a.jsonl", [*records(*words[:100]), b"{bad", b"", *records("after")])
    packed = b"\n".join([*records(*words[100:180]), b'{"body": 1}', b"\xff"])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(packed))
    table = pa.table({"text": [*words[180:250], None]})
    pq.write_table(table, folder / "c.parquet", row_group_size=10)
    for i, word in enumerate(words[250:]):
        (folder / f"d{i:02d}.txt").write_text(word, newline="")
    return folder


def test_documents_come_back_in_order_whatever_the_workers(corpus: Path, tmp_path: Path) -> None:
    of_one, of_many = list[tuple[int, int]](), list[tuple[int, int]]()
    out = tmp_path / "out"
    report = run(corpus, out, unit_bytes=1_000, progress=lambda *call: of_one.append(call))
    noted = lambda *call: of_many.append(call)  # noqa: E731
    run(corpus, tmp_path / "many", unit_bytes=1_000, workers=3, progress=noted)
    assert tree(out) == tree(tmp_path / "many")
    assert report.shards > 20
    assert [*map(list, map(dict.values, here.quarantine(out)))] == [
        ["a.jsonl", 101, "not JSON", "{bad"],
        ["b.jsonl.gz", 81, "no key 'text'", '{"body": 1}'],
        ["b.jsonl.gz", 82, "not UTF-8", base64.b64encode(b"\xff").decode()],
        ["c.parquet", 70, "'text' is null", None],
    ]
    bad = ["'text' is null", "no key 'text'", "not JSON", "not UTF-8"]
    assert report.quarantined == here.statistics(out)["quarantined"] == dict.fromkeys(bad, 1)
    assert report.quarantine_file == f"{out}/train/web/quarantine.jsonl"
    total = sum(path.stat().st_size for path in corpus.iterdir())
    for calls in (of_one, of_many):
        done = [call[0] for call in calls]
        assert {call[1] for call in calls} == {total}
        assert done == sorted(done)
        assert 0.95 * total <= done[-1] <= total
    found = decoded(out)
    assert found == list(texts(corpus))
    size = sum(len(text.encode()) for text in found)
    told = report.documents, report.text_bytes, report.tokens
    assert told == (len(found), size, size + len(found))
    inputs = here.manifest(out)["sources"]["train/web"]["inputs"]
    assert inputs[:4] == ["a.jsonl", "b.jsonl.gz", "c.parquet", "d00.txt"]
    for folder in (out, tmp_path / "many"):
        for file in map(folder.joinpath, tree(folder)):
            assert str(tmp_path).encode() not in file.read_bytes(), "the place shows"
        assert not list(folder.rglob(".*")), "left behind"


def test_fail_stops_at_the_first_bad_record(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    good = records(*(f"line {i}" for i in range(200)))
    write_lines(folder / "a.jsonl", good)
    write_lines(folder / "b.jsonl", [*good[:150], b"{", *good[150:], b"also bad"])
    write_lines(folder / "c.jsonl", [b"bad"])
    with pytest.raises(InputError, match=r"in/b\.jsonl:151: not JSON\. Fix the record, or"):
        run(folder, out, on_error="fail", workers=3, unit_bytes=500)
    assert not (out / "dataset.json").exists()
    assert run(folder, out, unit_bytes=500).quarantined == {"not JSON": 3}
    run(folder, tmp_path / "direct", unit_bytes=500)
    assert tree(out) == tree(tmp_path / "direct")


def test_fail_stops_at_a_record_that_was_set_aside_before(tmp_path: Path) -> None:
    out, lines = tmp_path / "out", [b"{", *records(*map(str, range(50)))]
    source = write_lines(tmp_path / "a.jsonl", lines)
    here.interrupted(source, out, 2, unit_bytes=100)
    with pytest.raises(InputError, match=r"a\.jsonl:1: not JSON\. Fix the record, or"):
        run(source, out, on_error="fail", unit_bytes=100)
    assert run(source, out, unit_bytes=100).quarantined == {"not JSON": 1}


def test_nothing_to_convert_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    keyless = write_lines(tmp_path / "b.jsonl", [b'{"body": "x", "url": "y"}'] * 3)
    with pytest.raises(InputError, match=r"3 no key 'text'; .*b\.jsonl:1, which has 'body', 'url'"):
        run(keyless, out)
    said = r"no record has .*: 1 no key 'text'; .*Name the keys to read with --text-key, or conv"
    chats = write_lines(tmp_path / "c.jsonl", [b'{"messages": []}'])
    with pytest.raises(InputError, match=said + "ert conversations with --task sft"):
        run(chats, out)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="the input files are empty: there is no record in them"):
        run(tmp_path / "empty.jsonl", out)
    with pytest.raises(InputError, match="no document is left: 3 shorter than 99 characters"):
        run(keyless, out, text_key="body", min_chars=99)
    assert not [path for path in out.rglob("*") if path.is_file()]
    assert run(keyless, out, text_key="body").documents == 3


def test_texts_of_several_keys_or_objects_are_joined(tmp_path: Path) -> None:
    rows = [{"messages": [{"content": "a"}, {"content": "b"}]}, {"t": "A", "b": "c"}, {"x": 1}]
    source = write_lines(tmp_path / "a.jsonl", objects(*rows))
    assert list(texts(source, "messages.content")) == ["a\n\nb"]
    assert list(texts(source, "t,b")) == ["A\n\nc"]
    chats, mapped = tmp_path / "chats.parquet", tmp_path / "chats.arrow"
    pq.write_table(pa.Table.from_pylist(rows[:1]), chats)
    with pa.ipc.new_stream(mapped, pq.read_schema(chats)) as writer:
        writer.write_table(pa.Table.from_pylist(rows[:1]))
    for table in (chats, mapped):
        assert list(texts(table, "messages.content")) == ["a\n\nb"]
        with pytest.raises(InputError, match=r"has no column 'messages\.role'; it has 'messages'"):
            list(texts(table, "messages.role"))
        with pytest.raises(InputError, match=r"has no column 'messages\.content'; it has 'messa"):
            run_here(table, tmp_path / "out", text_key="messages.content")


def test_tables_have_what_a_task_reads_and_records_what_it_trains_on(tmp_path: Path) -> None:
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"input_ids": [[1, 2]], "weight": [[0.5, 1.0]]}), first)
    pq.write_table(pa.table({"input_ids": [[1, 2]], "weight": ["heavy"]}), second)
    for task, options, says in (
        ("sft", {"prompt_key": "ask", "completion_key": "input_ids"}, "has no column 'ask'; it "),
        ("ids", {"keep_per_token": "weight"}, r"'weight' of .*b\.parquet is string; expected lis"),
    ):
        with pytest.raises(InputError, match=says):
            run([first, second], tmp_path / "out", task=task, **options)
    pairs = [{"prompt": "a", "chosen": text, "rejected": "c"} for text in ("b", "")]
    source = write_lines(tmp_path / "pairs.jsonl", objects(*pairs))
    assert run(source, tmp_path / "out", task="dpo").dropped == {"an empty answer": 1}


WRONG_OPTIONS: list[Any] = [
    ({"workers": 0}, "workers=0: expected at least 1"),
    ({"engine": "spark"}, "engine='spark': expected 'local' or 'ray'"),
    ({"on_error": "skip"}, "on_error='skip': expected 'quarantine' or 'fail'"),
    ({"encoder": "quick"}, "encoder='quick': expected 'auto', 'library', 'fast' or 'words'"),
    ({"bos": True}, "no begin-of-sequence token.*bos_token"),
]


@pytest.mark.parametrize(("options", "says"), WRONG_OPTIONS)
def test_wrong_options_say_what_to_give(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a"))
    with pytest.raises(InputError, match=says):
        run(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_everything_is_counted_as_it_is_defined(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    good = records("cafe\u0301", "ab", "")
    write_lines(folder / "a.jsonl", [*good, b"{", b"", *records("x" * 9)])
    write_lines(folder / "b.jsonl", [b'{"body": 1}'])
    (folder / "c.txt").write_text("word")
    run(folder, tmp_path / "out", normalize="NFC", max_chars=8)
    pairs = [{"prompt": "p", "chosen": "é" * n, "rejected": "no"} for n in (1, 2, 3)]
    run(write_lines(tmp_path / "pairs.jsonl", objects(*pairs)), tmp_path / "dpo", task="dpo")
    for side, characters, size in [("chosen", 9, 15), ("rejected", 9, 9)]:  # each its own texts
        counted = here.statistics(tmp_path / "dpo", f"train/web/{side}")
        assert (counted["characters"], counted["text_bytes"]) == (characters, size)
    percentiles = {"p01": 1, "p05": 1, "p25": 1, "p50": 3, "p75": 5, "p95": 6, "p99": 6}
    assert here.statistics(tmp_path / "out") == {
        "files": {"processed": 3, "successful": 2, "discarded": 1},
        **{"records": 8, "blank": 1, "added": 0},
        "quarantined": {"no key 'text'": 1, "not JSON": 1},
        "dropped": {"longer than 8 characters": 1},
        "raw_characters": 5 + 2 + 0 + 4,
        "raw_bytes": 6 + 2 + 0 + 4,
        "characters": 4 + 2 + 0 + 4,
        "text_bytes": 5 + 2 + 0 + 4,
        **{"loss_tokens": 11, "unknown_tokens": 0, "unknown_token_rate": 0.0},
        **{"longest_document": 6, "length_percentiles": percentiles},
        "tokens_per_byte": 15 / 11,
        "tokens_per_document": 15 / 4,
        "characters_per_document": 10 / 4,
        "bytes_per_document": 11 / 4,
    }


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_line_without_end_is_set_aside_in_flat_memory(tmp_path: Path) -> None:
    packer, chance = zstandard.ZstdCompressor().compressobj(), random.Random(0)
    with (tmp_path / "a.jsonl.zst").open("wb") as packed:
        for _ in range(700):  # some of it at random, or it is taken for a decompression bomb
            packed.write(packer.compress(chance.randbytes(8_000).hex().encode() + b"x" * 2**20))
        packed.write(packer.compress(b"\n" + records("a")[0]) + packer.flush())
    script = f"""
import re, resource
from pathlib import Path
from jaxdata.converter import convert
report = convert({str(tmp_path / "a.jsonl.zst")!r}, output={str(tmp_path / "out")!r}, source="web",
                 tokenizer="bytes", workers=1, max_record_bytes=2**20)
assert report.documents == 1, report
# Not ru_maxrss of this process: it counts what the test's own process had before exec.
own = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) < 500, "MB; the line has 700"
    assert here.quarantine(tmp_path / "out")[0]["reason"] == "longer than 1,048,576 bytes"


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

def first_key(record):
    return {"text": [*record][0]}

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
    (tmp_path / "a.txt").write_text("whole")
    several = {"transform": "my_cleaning:first_key", "text_key": "text,body"}
    run(tmp_path / "a.txt", tmp_path / "file", **several)
    assert decoded(tmp_path / "file") == ["text"], "the text of a file is the first of several keys"


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
        ("not_there:f", "or PYTHONPATH:\nModuleNotFoundError: No module named 'not_there'"),
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
    given = ["lost", *(row["text"] for row in rows)]
    assert sorted(text for texts in found for text in texts) == sorted(given)
    assert sum(len({*texts}) for texts in found) == 271
    assert 200 < len({*found[0]}) < 271
    report = run(tmp_path / "in", tmp_path / "key", split_ratio="a=1,b=1", split_by="site.host")
    places = [here.column(tmp_path / "key", "origin_row", f"{name}/web") for name in "ab"]
    one, two = ({rows[n - 1]["site"]["host"] for n in numbers} for numbers in places)
    assert (one & two, len(one | two)) == (set(), 40)
    assert (report.documents, report.quarantined) == (300, {"no key 'site.host'": 1})


DOCUMENTS = [f"Document {n}: some text of {n % 7} parts, {'café ' * (n % 3)}" for n in range(1_500)]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Some units of texts and a tokenizer; `by-library` is the dataset that its library makes."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings()))
    source = write_lines(tmp_path / "a.jsonl", records(*DOCUMENTS))
    given = {"inputs": source, "tokenizer": f"hf:{tmp_path}/tokenizer.json", "unit_bytes": 20_000}
    run_here(output=tmp_path / "by-library", encoder="library", **given)
    monkeypatch.setattr(choice, "_known", lambda: [*map(chr, [*range(128), *range(0xC0, 0x100)])])
    monkeypatch.setattr(choice, "hard_texts", lambda _: [])
    return given


def test_a_conversion_that_is_killed_after_a_difference_trusts_no_unit_of_that_encoder(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {*DOCUMENTS[1:200], *DOCUMENTS[1_000:]}
    monkeypatch.setattr(choice, "ENCODERS", [double(wrong.__contains__)])
    inner, calls = Conversion._convert_units, []

    def killed(self: Conversion, *given: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        inner(self, *given)

    monkeypatch.setattr(Conversion, "_convert_units", killed)
    with pytest.raises(KeyboardInterrupt):
        run_here(output=tmp_path / "out", encoder="fast", **given)
    assert here.receipts(tmp_path / "out"), "units the encoder made"
    report = run_here(output=tmp_path / "out", encoder="auto", **given)
    assert tree(tmp_path / "out") == tree(tmp_path / "by-library")
    assert report.encoding
    assert set(report.encoding.counts) == {""}


def test_a_word_that_differs_is_found_by_the_samples(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    wrong = [double(lambda text: "Document" in text and "5" in text)]
    monkeypatch.setattr(choice, "ENCODERS", wrong)
    done = list[tuple[int, int]]()
    asked: Any = {"encoder": "fast", "progress": lambda *some: done.append(some)}
    report = run_here(output=tmp_path / "out", **asked, **given)
    assert {total for _, total in done} == {given["inputs"].stat().st_size}, "bytes alone"
    assert tree(tmp_path / "out") == tree(tmp_path / "by-library")
    file = given["inputs"].with_name("tokenizer.json")
    assert (tmp_path / "out/tokenizer/tokenizer.json").read_bytes() == file.read_bytes()
    assert "double 1.0 gives other ids than the library for 'Document" in caplog.text
    assert "encoded again by the library" in caplog.text
    assert report.encoding
    assert set(report.encoding.counts) == {""}, "no unit is left that the encoder made"
    (said,) = (tmp_path / "out/history.jsonl").read_text().splitlines()
    assert json.loads(said)["encoding"] == report.encoding.model_dump(mode="json")
    assert "(double 1.0 gives other ids" in str(report)
    with pytest.raises(InputError, match=r"--set encoder=fast cannot encode.*it gave other ids"):
        run_here(output=tmp_path / "named", encoder="fast", **given)
    assert not [path for path in (tmp_path / "named").rglob("*") if path.is_file()]
