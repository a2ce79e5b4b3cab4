"""Whole conversions, read back with array_record and numpy alone."""

from __future__ import annotations

import base64
import gzip
import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from jaxdata import tokenizers
from jaxdata.converter import ConversionReport, texts
from jaxdata.errors import InputError
from jaxdata.format.storage import open_store
from tests.converter.here import run
from tests.format.trees import tree


def write_lines(path: Path, lines: Iterable[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def records(*words: str) -> list[bytes]:
    return [json.dumps({"text": word}).encode() for word in words]


def manifest(output: Path) -> dict[str, Any]:
    return json.loads((output / "dataset.json").read_bytes())


def documents(output: Path, source: str = "train/web") -> list[np.ndarray]:
    """Documents of a source, from its records and lengths."""
    fields = manifest(output)
    tokens = [np.empty(0, fields["dtype"])]
    for shard in fields["sources"][source]["shards"]:
        reader = ArrayRecordReader(str(output / shard["name"]))
        tokens += [
            np.frombuffer(record, "<" + np.dtype(fields["dtype"]).str[1:])
            for record in reader.read_all()
        ]
    ends = np.cumsum(column(output, "length", source))
    return np.split(np.concatenate(tokens), ends[:-1])


def column(output: Path, name: str, source: str = "train/web") -> np.ndarray:
    index = manifest(output)["sources"][source].get("index", "index")
    return open_store(output).read_array(f"{source}/{index}/{name}")


def decoded(output: Path, source: str = "train/web") -> list[str]:
    found = documents(output, source)
    assert all(document[-1] == 256 for document in found)
    return [bytes(document[:-1].astype(np.uint8)).decode() for document in found]


def quarantine(output: Path) -> list[dict[str, Any]]:
    lines = (output / "train/web/quarantine.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


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


@pytest.mark.parametrize("workers", [2, 4])
def test_the_bytes_do_not_depend_on_workers(corpus: Path, tmp_path: Path, workers: int) -> None:
    one = run(corpus, tmp_path / "one", unit_bytes=1_000)
    run(corpus, tmp_path / "many", unit_bytes=1_000, workers=workers)
    assert tree(tmp_path / "one") == tree(tmp_path / "many")
    assert one.shards > 20
    assert one.quarantined == {
        "'text' is null": 1,
        "no key 'text'": 1,
        "not JSON": 1,
        "not UTF-8": 1,
    }


def test_documents_come_back_in_order_with_their_origins(corpus: Path, tmp_path: Path) -> None:
    report = run(corpus, tmp_path / "out", unit_bytes=1_000, workers=2)
    found = decoded(tmp_path / "out")
    assert found == list(texts(corpus))
    assert report.documents == len(found)
    assert report.text_bytes == sum(len(text.encode()) for text in found)
    assert report.tokens == report.text_bytes + len(found)
    inputs = manifest(tmp_path / "out")["sources"]["train/web"]["inputs"]
    assert inputs[:4] == ["a.jsonl", "b.jsonl.gz", "c.parquet", "d00.txt"]
    files, rows_in_file = (column(tmp_path / "out", f"origin_{name}") for name in ("file", "row"))
    origins = zip(files, rows_in_file, strict=True)
    lines = (corpus / "a.jsonl").read_bytes().split(b"\n")
    rows = pq.read_table(corpus / "c.parquet")["text"].to_pylist()
    for text, (file, row) in zip(found, origins, strict=True):
        if inputs[file] == "a.jsonl":
            assert json.loads(lines[row - 1])["text"] == text
        elif inputs[file] == "c.parquet":
            assert rows[row] == text
        elif inputs[file].endswith(".txt"):
            assert row == 1
            assert (corpus / inputs[file]).read_bytes().decode() == text


@pytest.mark.exhaustive
def test_real_text_becomes_the_librarys_own_tokens(shared_data: Path, tmp_path: Path) -> None:
    spec = f"sentencepiece:{shared_data / 'tokenizers/mistral/tokenizer.mistral-v1.model'}"
    inputs = [shared_data / name for name in ("code-0.jsonl.gz", "short.jsonl.gz")]
    report = run(inputs, tmp_path / "out", tokenizer=spec, workers=2, record_tokens=1_000)
    expected = tokenizers.load(spec).encode(list(texts(inputs)))
    found = documents(tmp_path / "out")
    assert len(found) == len(expected) == report.documents == 19_960
    for document, ids in zip(found, expected, strict=True):
        assert document.dtype == np.uint16
        assert document.tolist() == [*ids.tolist(), 2]
    shard = manifest(tmp_path / "out")["sources"]["train/web"]["shards"][0]
    reader = ArrayRecordReader(str(tmp_path / "out" / shard["name"]))
    assert max(len(record) for record in reader.read_all()) == 2_000
    kept = tmp_path / "out/tokenizer/tokenizer.model"
    assert kept.read_bytes() == Path(spec.split(":")[1]).read_bytes()


def test_real_tables_and_a_wide_vocabulary(shared_data: Path, tmp_path: Path) -> None:
    spec = f"tiktoken:{shared_data / 'tokenizers/tiktoken/cl100k_base.tiktoken'}"
    table = pq.ParquetFile(shared_data / "web.parquet").read_row_group(0, columns=["text"])
    pq.write_table(table, tmp_path / "part.parquet", row_group_size=300)
    run(tmp_path / "part.parquet", tmp_path / "out", tokenizer=spec, unit_bytes=2**20)
    found = documents(tmp_path / "out")
    tokenizer = tokenizers.load(spec)
    assert found[0].dtype == np.uint32
    assert [tokenizer.decode(document) for document in found] == table["text"].to_pylist()


def test_empty_text_is_one_token_and_bos_comes_first(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("", "ab"))
    run(source, tmp_path / "plain")
    assert [d.tolist() for d in documents(tmp_path / "plain")] == [[256], [97, 98, 256]]
    tokenizer = tokenizers.load("bytes", bos=1)
    run(source, tmp_path / "bos", tokenizer=tokenizer, bos=True)
    assert [d.tolist() for d in documents(tmp_path / "bos")] == [[1, 256], [1, 97, 98, 256]]
    with pytest.raises(InputError, match=r"no begin-of-sequence token.*--bos-token"):
        run(source, tmp_path / "none", bos=True)


def test_bad_records_are_kept_with_file_line_and_reason(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    bad = [
        b"{",
        b'{"text": null}',
        b'{"text": "\xff"}',
        b"[1]",
        b'{"text": 7}',
        b'{"a": "\xc3\xa9"}',
    ]
    write_lines(folder / "a.jsonl", [*records("good"), b"", *bad, rb'{"text": "\udfff"}'])
    pq.write_table(pa.table({"text": ["good", None]}), folder / "b.parquet")
    report = run(folder, tmp_path / "out")
    assert report.documents == 2
    assert sum(report.quarantined.values()) == 8
    found = quarantine(tmp_path / "out")
    assert report.quarantine_file == f"{tmp_path / 'out'}/train/web/quarantine.jsonl"
    assert [(one["line"], one["reason"]) for one in found[:-1]] == [
        (3, "not JSON"),
        (4, "'text' is null"),
        (5, "not UTF-8"),
        (6, "JSON, but not an object"),
        (7, "'text' is not a string"),
        (8, "no key 'text'"),
        (9, "'text' holds half a surrogate pair"),
    ]
    assert {one["file"] for one in found[:-1]} == {"a.jsonl"}
    assert base64.b64decode(found[2]["raw_base64"]) == bad[2]
    assert found[5]["raw"] == bad[5].decode()
    assert found[-1] == {"file": "b.parquet", "row": 1, "reason": "'text' is null", "raw": None}
    statistics = manifest(tmp_path / "out")["sources"]["train/web"]["statistics"]
    assert statistics["quarantined"] == report.quarantined


@pytest.mark.parametrize("workers", [1, 3])
def test_fail_stops_at_the_first_bad_record(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "in"
    good = records(*(f"line {i}" for i in range(200)))
    write_lines(folder / "a.jsonl", good)
    write_lines(folder / "b.jsonl", [*good[:150], b"{", *good[150:], b"also bad"])
    write_lines(folder / "c.jsonl", [b"bad"])
    with pytest.raises(InputError, match=r"in/b\.jsonl:151: not JSON\. Fix the record, or"):
        run(folder, tmp_path / "out", on_error="fail", workers=workers, unit_bytes=500)
    assert not (tmp_path / "out/dataset.json").exists()
    report = run(folder, tmp_path / "out", workers=workers, unit_bytes=500)
    assert report.quarantined == {"not JSON": 3}
    run(folder, tmp_path / "direct", unit_bytes=500)
    assert tree(tmp_path / "out") == tree(tmp_path / "direct")


def test_nothing_to_convert_says_so(tmp_path: Path) -> None:
    empty = write_lines(tmp_path / "a.jsonl", [b"", b" "])
    with pytest.raises(InputError, match="the input files are empty"):
        run(empty, tmp_path / "out")
    keyless = write_lines(tmp_path / "b.jsonl", [b'{"body": "x", "url": "y"}'] * 3)
    with pytest.raises(
        InputError, match=r"no record has the key 'text'; .*b\.jsonl:1 has 'body', 'url'"
    ):
        run(keyless, tmp_path / "out")
    bad = write_lines(tmp_path / "c.jsonl", [b"{", b'{"text": null}'])
    with pytest.raises(
        InputError, match="no record has a usable text: 1 'text' is null, 1 not JSON"
    ):
        run(bad, tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert run(keyless, tmp_path / "out", text_key="body").documents == 3


@pytest.mark.parametrize("unit_bytes", [1_000, 2**26])
def test_a_file_that_ends_early_fails_the_conversion(tmp_path: Path, unit_bytes: int) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(records(*map(str, range(9_999)))))[:-10])
    with pytest.raises(InputError, match=r"a\.jsonl\.gz cannot be read to its end"):
        run(path, tmp_path / "out", unit_bytes=unit_bytes)
    assert not (tmp_path / "out/dataset.json").exists()


def test_nothing_of_time_place_or_machine_is_written(corpus: Path, tmp_path: Path) -> None:
    run(corpus, tmp_path / "out", workers=2)
    for file in map((tmp_path / "out").joinpath, tree(tmp_path / "out")):
        assert str(tmp_path).encode() not in file.read_bytes()
    for hidden in (tmp_path / "out").rglob(".*"):
        pytest.fail(f"{hidden} was left behind")


def test_progress_counts_up_to_the_size_of_the_inputs(corpus: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    run(corpus, tmp_path / "out", unit_bytes=1_000, progress=lambda *call: calls.append(call))
    total = sum(path.stat().st_size for path in corpus.iterdir())
    assert {call[1] for call in calls} == {total}
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert 0.95 * total <= done[-1] <= total


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers=0; expected 1 or more"),
        ({"engine": "spark"}, "engine='spark'; expected one of"),
        ({"ray_address": "a:1"}, "ray_address='a:1' is for engine='ray'; this is 'local'"),
        ({"on_error": "skip"}, "on_error='skip'; expected one of"),
        ({"record_tokens": 0}, "record_tokens=0"),
        ({"source": "../x"}, "--source '../x' is not a valid folder name"),
        ({"source": "a/index"}, "--source 'a/index' is a name reserved by datasets"),
        ({"split": "a/b"}, "--split 'a/b' has a '/'"),
        ({"split": "tokenizer"}, "reserved by datasets"),
        ({"tokenizer": "gpt2"}, "unknown tokenizer 'gpt2'"),
    ],
)
def test_wrong_options_say_what_to_give(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a"))
    with pytest.raises(InputError, match=says):
        run(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_report_reads_well() -> None:
    report = ConversionReport(
        output="data/x",
        source="train/web",
        documents=1_200,
        tokens=50_000,
        text_bytes=200_000,
        shards=1,
        quarantined={"not JSON": 2, "no text": 3},
        quarantine_file="data/x/q.jsonl",
        dropped={"shorter than 5 characters": 1},
        seconds=2.0,
        files=1,
        bytes=131_072,
    )
    assert str(report).splitlines() == [
        "read 1,200 documents, 200.0 kB of text, from 1 file; quarantined 5 records (3 no text; "
        "2 not JSON), in data/x/q.jsonl; dropped 1 record (1 shorter than 5 characters)",
        "wrote train/web: 50,000 tokens (0.250 per byte), 1 shard, 131.1 kB, in data/x",
        "took 2.0 s, 100.0 kB/s",
    ]


def test_neither_parent_nor_worker_imports_jax_or_grain(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", records("a"))
    script = f"""
import sys
from jaxdata.converter import convert, worker
report = convert({str(source)!r}, output={str(tmp_path / "out")!r}, source="s", tokenizer="bytes")
assert report.documents == 1
print(sorted({{"jax", "grain", "torch", "tensorflow"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
