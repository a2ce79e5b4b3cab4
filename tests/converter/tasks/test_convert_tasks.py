"""Tasks through a whole conversion: to shards, to rows, to batches."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import jaxdata
from jaxdata import tokenizers
from jaxdata.cli import cli
from jaxdata.converter import convert
from jaxdata.converter.tasks import Dropped
from jaxdata.converter.tasks.encoding import encode
from jaxdata.errors import InputError
from tests.converter.chat.chat import CHATML
from tests.converter.here import convert_here
from tests.tokenizers import made
from tests.tokenizers.test_tokenizers import FILES, open_one

Ids = tuple[int, ...]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def trained(rows: Any, prefix: str = "") -> Counter[tuple[int, int]]:
    """Every (input, target) pair with loss in the batches of one epoch."""
    found: Counter[tuple[int, int]] = Counter()
    for batch in jaxdata.Loader(rows, batch_size=4):
        mask = batch[f"{prefix}loss_mask"]
        inputs, targets = batch[f"{prefix}inputs"][mask], batch[f"{prefix}targets"][mask]
        found.update(zip(inputs.tolist(), targets.tolist(), strict=True))
    return found


@pytest.fixture(scope="module")
def gsm8k(shared_data: Path) -> list[dict[str, str]]:
    with (shared_data / "instruct/gsm8k_train.jsonl").open() as lines:
        return [json.loads(next(lines)) for _ in range(300)]


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "pad"])
def test_exactly_the_completions_have_loss_in_batches(
    tmp_path: Path, shared_data: Path, gsm8k: list[dict[str, str]], strategy: str
) -> None:
    file = write(tmp_path / "in.jsonl", gsm8k)
    tokenizer = open_one(shared_data, "gpt2")
    convert_here(
        file, output=tmp_path / "out", source="x", tokenizer=tokenizer, task="sft", workers=1,
        prompt_key="question", completion_key="answer", separator="\n",
    )  # fmt: skip
    docs = jaxdata.open_dataset(tmp_path / "out").source("train", "x")
    assert docs.masked
    rows = jaxdata.pack(docs, seq_len=128, strategy=strategy)
    expected: Counter[tuple[int, int]] = Counter()
    for record in gsm8k:
        question, separator, answer = tokenizer.encode([record["question"], "\n", record["answer"]])
        before = [*question.tolist(), *separator.tolist()]
        after = [*answer.tolist(), tokenizer.eod_id]
        expected.update(zip([before[-1], *after], after, strict=False))
    assert trained(rows) == expected


def test_exactly_the_assistants_words_have_loss_in_batches(
    tmp_path: Path, shared_data: Path
) -> None:
    (tmp_path / "chatml.jinja").write_text(CHATML)
    convert_here(
        shared_data / "instruct/v1_sft_demo.jsonl", output=tmp_path / "out", source="x",
        tokenizer=open_one(shared_data, "cl100k"), task="sft", workers=1,
        chat_template=str(tmp_path / "chatml.jinja"), template_text_ok=True,
    )  # fmt: skip
    dataset = jaxdata.open_dataset(tmp_path / "out")
    docs = dataset.source("train", "x")
    with (shared_data / "instruct/v1_sft_demo.jsonl").open() as lines:
        records = [json.loads(line)["messages"] for line in lines]
    assert len(docs) == len(records) == 500
    for document, messages in zip(docs, records, strict=True):
        found = dataset.decode(document["tokens"][document["loss_mask"]])
        said = [m["content"][0]["value"] for m in messages if m["role"] == "assistant"]
        assert found == "".join(f"{text}<|im_end|>\n" for text in said)
    rows = jaxdata.pack(docs, seq_len=96, overlap=8)
    pairs = Counter(
        pair
        for document in docs
        for pair, loss in zip(
            zip(document["tokens"][:-1].tolist(), document["tokens"][1:].tolist(), strict=True),
            document["loss_mask"][1:],
            strict=True,
        )
        if loss
    )
    assert trained(rows) == pairs


def test_preferences_become_two_aligned_sources(tmp_path: Path, shared_data: Path) -> None:
    (tmp_path / "chatml.jinja").write_text(CHATML)
    report = convert_here(
        shared_data / "instruct/dpo_en_demo.json", output=tmp_path / "out", source="x",
        tokenizer=open_one(shared_data, "cl100k"), task="dpo", workers=1,
        chat_template=str(tmp_path / "chatml.jinja"), template_text_ok=True,
        split_ratio="train=80,val=20",
    )  # fmt: skip
    assert sorted(report.sources) == [
        "train/x/chosen", "train/x/rejected", "val/x/chosen", "val/x/rejected",
    ]  # fmt: skip
    dataset = jaxdata.open_dataset(tmp_path / "out")
    records = json.loads((shared_data / "instruct/dpo_en_demo.json").read_text())
    answers = {(r["chosen"]["value"], r["rejected"]["value"]) for r in records}
    seen = 0
    for split in ("train", "val"):
        sides = [dataset.source(split, f"x/{side}") for side in ("chosen", "rejected")]
        rows = jaxdata.pairs(*sides, seq_len=2_048, shuffle=False)
        for row in (rows[number] for number in range(len(rows))):
            texts = [
                dataset.decode(row[f"{side}_targets"][row[f"{side}_loss_mask"]])
                for side in ("chosen", "rejected")
            ]
            assert tuple(text.removesuffix("<|im_end|>\n") for text in texts) in answers
            seen += 1
        short = jaxdata.pairs(*sides, seq_len=64)
        for batch in jaxdata.Loader(short, batch_size=8):
            assert (batch["chosen_inputs"][:, 0] == batch["rejected_inputs"][:, 0]).all()
    assert seen == 300


def content(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.rglob("*.array_record"))]


@pytest.mark.parametrize("task", ["fim", "lm", "sft"])
def test_bytes_do_not_depend_on_workers(tmp_path: Path, shared_data: Path, task: str) -> None:
    options: dict[str, Any] = {
        "fim": {"seed": 3},
        "lm": {"short_rate": 0.5, "short_length": 50},
        "sft": {"prompt_key": "source", "completion_key": "text", "separator": "\n"},
    }[task]
    with gzip.open(shared_data / "code-0.jsonl.gz", "rt") as lines:
        (tmp_path / "in.jsonl").write_text("".join(next(lines) for _ in range(150)))
    tokenizer = open_one(shared_data, "cl100k")
    for workers in (1, 2):
        convert(
            tmp_path / "in.jsonl", output=tmp_path / str(workers), source="x",
            tokenizer=tokenizer, task=task, workers=workers,
            unit_bytes=2**17, **options,
        )  # fmt: skip
    assert content(tmp_path / "1") == content(tmp_path / "2")
    assert len(content(tmp_path / "1")) > 3


def test_short_documents_are_drawn_by_content(tmp_path: Path) -> None:
    texts = [f"{n} " * 40 for n in range(400)]
    file = write(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    convert_here(file, output=tmp_path / "out", source="x", tokenizer="bytes", workers=1,
            short_rate=0.25, short_length=20)  # fmt: skip
    docs = jaxdata.open_dataset(tmp_path / "out").source("train", "x")
    whole = [len(text) + 1 for text in texts]
    short = [length for length, full in zip(docs.lengths, whole, strict=True) if length != full]
    assert abs(len(short) / 400 - 0.25) < 0.08
    assert set(short) <= set(range(2, 20))
    assert len(set(short)) > 12
    for number, text in enumerate(texts):
        tokens = docs[number]["tokens"]
        assert bytes(tokens[: len(text)].astype(np.uint8)) == text.encode()[: len(tokens)]


def test_tables_hold_conversations_and_pairs(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "é"}]
    table = pa.table({
        "messages": [messages] * 3, "n": [1, 2, 3],
        "prompt": ["q"] * 3, "completion": ["é", "é", ""],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet")
    common: dict[str, Any] = {"tokenizer": "bytes", "task": "sft", "workers": 1, "separator": "|"}
    pair_keys = {"prompt_key": "prompt", "completion_key": "completion"}
    convert(tmp_path / "in.parquet", output=tmp_path / "out", source="chats", **common)
    report = convert(
        tmp_path / "in.parquet", output=tmp_path / "out", source="pairs", **common, **pair_keys
    )
    assert report.dropped == {"an empty prompt or completion": 1}
    dataset = jaxdata.open_dataset(tmp_path / "out")
    for source, count in (("chats", 3), ("pairs", 2)):
        docs = dataset.source("train", source)
        assert len(docs) == count
        assert dataset.decode(docs[0]["tokens"]) == "q|é"
        assert dataset.decode(docs[0]["tokens"][docs[0]["loss_mask"]]) == "é"
    with pytest.raises(InputError, match=r"no column 'question'.*with --prompt-key, --completion"):
        convert(
            tmp_path / "in.parquet", output=tmp_path / "out", source="no", **common,
            prompt_key="question", completion_key="completion",
        )  # fmt: skip


def test_a_resume_is_compared_field_by_field(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [{"prompt": "q", "completion": "a"}])
    given: dict[str, Any] = {"output": tmp_path / "out", "source": "x", "tokenizer": "bytes"}
    convert_here(file, **given, task="sft", separator="|", workers=1)
    assert convert(file, **given, task="sft", separator="|").already_complete
    with pytest.raises(InputError, match=r"separator was '\|', is '!'"):
        convert(file, **given, task="sft", separator="!")
    with pytest.raises(InputError, match=r"separator was '\|', is ''"):
        convert(file, **given, task="sft")
    with pytest.raises(InputError, match="task was 'sft', is 'lm'"):
        convert(file, **given, text_key="prompt")


def test_the_command_takes_the_options_of_its_task(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [{"q": "2+2", "a": "4"}, {"q": "", "a": "4"}])
    arguments = ["convert", str(file), "--output", str(tmp_path / "out"), "--source", "x"]
    arguments += ["--tokenizer", "bytes", "--workers", "1"]
    done = CliRunner().invoke(cli, [*arguments, "--prompt-key", "q"])
    assert "task 'lm' has no option 'prompt_key'" in str(done.exception)
    sft = [*arguments, "--task", "sft", "--prompt-key", "q", "--separator", r"\n"]
    done = CliRunner().invoke(cli, [*sft, "--completion-key", "b"])
    assert "no record has the key 'b'; " in str(done.exception)
    assert "has 'q', 'a': name one of these with --prompt-key, --comp" in str(done.exception)
    done = CliRunner().invoke(cli, [*sft, "--completion-key", "a"])
    assert done.exit_code == 0, done.output
    assert "dropped 1 record (1 an empty prompt or completion)" in done.output
    dataset = jaxdata.open_dataset(tmp_path / "out")
    assert dataset.decode(dataset.source("train", "x")[0]["tokens"]) == "2+2\n4"
    done = CliRunner().invoke(cli, [*arguments, "--template-variables", "[1]"])
    assert "expected an object" in done.output
    done = CliRunner().invoke(cli, [*arguments, "--template-variables", "[" * 10**5])
    assert "Invalid value for '--template-variables': not JSON: " in done.output


@pytest.mark.parametrize("name", FILES)
def test_long_texts_have_the_librarys_tokens(shared_data: Path, name: str) -> None:
    with gzip.open(shared_data / "books.jsonl.gz") as books:
        texts = [json.loads(next(books))["text"][:60_000], "short", ""]
    tokenizer = open_one(shared_data, name)
    whole = tokenizer.encode(texts)
    for one, other in zip(encode(tokenizer, texts, long=7_000), whole, strict=True):
        assert not isinstance(one, Dropped)
        assert np.array_equal(one, other)


def test_a_text_that_the_library_fails_on_is_set_aside_alone(
    tmp_path: Path, shared_data: Path
) -> None:
    texts = ["before", " " * 10**6 + "a", "after"]
    file = write(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    report = convert_here(
        file, output=tmp_path / "out", source="x", tokenizer=open_one(shared_data, "cl100k"),
        workers=1,
    )  # fmt: skip
    assert not report.dropped
    assert set_aside(tmp_path / "out/train/x") == [
        ("in.jsonl", 2, "the tokenizer cannot encode it")
    ]
    dataset = jaxdata.open_dataset(tmp_path / "out")
    docs = dataset.source("train", "x")
    assert [dataset.decode(one["tokens"]) for one in docs] == ["before", "after"]


def set_aside(source: Path) -> list[tuple[str, int, str]]:
    lines = map(json.loads, (source / "quarantine.jsonl").read_text().splitlines())
    return [(one["file"], one["line"], one["reason"]) for one in lines]


@pytest.fixture
def panics(tmp_path: Path) -> str:
    """A tokenizer whose splitting rule runs out of tries on many x in a row: Rust panics."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(made.settings() | {"pre_tokenizer": made.split(r"(x+x+)+y|\s+|\S")}))
    return f"hf:{path}"


def test_a_record_on_which_a_library_panics_is_set_aside_in_its_place(
    tmp_path: Path, panics: str
) -> None:
    lines = [{"text": "before"}, {"text": "x" * 3_000}, {}, {"text": "after"}]
    file = write(tmp_path / "in.jsonl", lines)
    report = convert_here(file, output=tmp_path / "out", source="x", tokenizer=panics)
    assert set_aside(tmp_path / "out/train/x") == [
        ("in.jsonl", 2, "the tokenizer cannot encode it"),
        ("in.jsonl", 3, "no key 'text'"),
    ]
    assert (report.documents, sum(report.quarantined.values()), report.dropped) == (2, 2, {})
    dataset = jaxdata.open_dataset(tmp_path / "out")
    decoded = [dataset.decode(one["tokens"]) for one in dataset.source("train", "x")]
    assert [text.replace(" ", "") for text in decoded] == ["before", "after"]


def test_where_conversions_stop_at_a_bad_record_one_that_panics_stops_it(
    tmp_path: Path, panics: str
) -> None:
    file = write(tmp_path / "in.jsonl", [{"text": "before"}, {"text": "x" * 3_000}])
    with pytest.raises(InputError, match=r"in\.jsonl:2: the tokenizer cannot encode it"):
        convert_here(file, output=tmp_path / "out", source="x", tokenizer=panics, on_error="fail")


def test_bytes_of_any_text_pass() -> None:
    tokenizer = tokenizers.load("bytes")
    (ids,) = encode(tokenizer, ["größe" * 10], long=3)
    assert tokenizer.decode(ids) == "größe" * 10
