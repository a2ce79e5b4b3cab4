"""Tasks through whole conversions: to shards, to rows, to batches."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jaxdata
from jaxdata.base.errors import InputError
from tests import commands
from tests.converter.here import manifest, quarantine, run_here
from tests.converter.tasks.test_plain_texts import FIM, in_order
from tests.tokenizers import made
from tests.tokenizers.test_tokenizers import open_one

CODE = "".join(f"def f{n}(x):\n    return x + {n}\n" for n in range(400))


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_exactly_the_assistants_words_have_loss_in_batches(
    tmp_path: Path, shared_data: Path
) -> None:
    file = shared_data / "instruct/v1_sft_demo.jsonl"
    records = [json.loads(line)["messages"] for line in file.read_text().splitlines()[:12]]
    run_here(
        write(tmp_path / "in.jsonl", [{"messages": one} for one in records]), tmp_path / "out",
        task="sft", source="x", tokenizer=open_one(shared_data, "cl100k"), template_text_ok=True,
        chat_template="chatml",
    )  # fmt: skip
    dataset = jaxdata.open_dataset(tmp_path / "out")
    docs = dataset.source("train", "x")
    for document, messages in zip(docs, records, strict=True):
        found = dataset.decode(document["tokens"][document["loss_mask"]])
        said = [m["content"][0]["value"] for m in messages if m["role"] == "assistant"]
        assert found == "".join(f"{text}<|im_end|>" for text in said)
    trained: Counter[int] = Counter()
    for batch in jaxdata.Loader(jaxdata.pack(docs, seq_len=96, overlap=8), batch_size=4):
        trained.update(batch["targets"][batch["loss_mask"]].tolist())
    masked = (document["tokens"][document["loss_mask"]].tolist() for document in docs)
    assert trained == Counter(token for tokens in masked for token in tokens)


def test_preferences_become_two_aligned_sources(tmp_path: Path) -> None:
    records = [{"prompt": f"{n}?", "chosen": f"yes {n}", "rejected": "no"} for n in range(30)]
    file = write(tmp_path / "in.jsonl", records)
    run_here(file, tmp_path / "out", task="dpo", source="x", separator=" ")
    dataset = jaxdata.open_dataset(tmp_path / "out")
    both = [dataset.source("train", f"x/{side}") for side in ("chosen", "rejected")]
    rows = jaxdata.pairs(*both, seq_len=64, shuffle=False)
    found = set()
    for row in (rows[number] for number in range(len(rows))):
        targets = (
            row[f"{side}_targets"][row[f"{side}_loss_mask"]] for side in ("chosen", "rejected")
        )
        found.add(tuple(dataset.decode(one) for one in targets))
    assert found == {(one["chosen"], one["rejected"]) for one in records}


def test_the_command_takes_the_options_of_its_task(tmp_path: Path) -> None:
    pq.write_table(pa.table({"q": ["2+2", ""], "a": ["4", "4"]}), tmp_path / "in.parquet")
    sft = ["--task", "sft", "--prompt-key", "q", "--separator", r"\n"]

    def said(*given: str, status: int = 0) -> str:
        where = ["--output", tmp_path / "out", "--tokenizer", "bytes", "--source", "x"]
        done = commands.run("convert", tmp_path / "in.parquet", *where, *given, status=status)
        return done.stdout + done.stderr

    assert "task 'lm': there is no setting 'prompt_key'" in said("--prompt-key", "q", status=1)
    assert "expected an object" in said("--template-variables", "[1]", status=2)
    missing = "in.parquet has no column 'b'; it has 'q', 'a': name one of these with --prompt-key"
    assert missing in said(*sft, "--completion-key", "b", status=1)
    assert "dropped 1 record (1 an empty prompt" in said(*sft, "--completion-key", "a")
    dataset = jaxdata.open_dataset(tmp_path / "out")
    (document,) = dataset.source("train", "x")
    assert dataset.decode(document["tokens"]) == "2+2\n4"
    assert dataset.decode(document["tokens"][document["loss_mask"]]) == "4"


def test_a_record_on_which_a_library_panics_is_set_aside_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"  # whose rule runs out of tries on many x: Rust panics
    path.write_text(json.dumps(made.settings() | {"pre_tokenizer": made.split(r"(x+x+)+y|\s+|\S")}))
    lines = [{"text": "before"}, {"text": "x" * 3_000}, {}, {"text": "after"}]
    file = write(tmp_path / "in.jsonl", lines)
    report = run_here(file, tmp_path / "out", tokenizer=f"hf:{path}")
    assert [(one["line"], one["reason"]) for one in quarantine(tmp_path / "out")] == [
        (2, "the tokenizer cannot encode it"),
        (3, "no key 'text'"),
    ]
    assert (report.documents, report.dropped) == (2, {})


def test_pieces_belong_to_their_record_and_limits_count_that(tmp_path: Path) -> None:
    kept = [CODE[n:] for n in range(0, 4_000, 400)]
    texts = [*kept, "short", CODE[:90], CODE * 2]
    file = write(tmp_path / "a.jsonl", [{"text": text, "n": len(text)} for text in texts])
    limits = {"min_chars": 6, "max_tokens": 13_000, "min_tokens": 2_500}
    split = {"keep": "n", "split_ratio": "train=1,val=1"}
    report = run_here(file, tmp_path / "out", task="fim", **FIM, **limits, **split)
    assert report.dropped == {
        "shorter than 6 characters": 1,
        "shorter than 2,500 tokens": 1,
        "longer than 13,000 tokens": 1,
    }
    dataset = jaxdata.open_dataset(tmp_path / "out")
    seen: dict[int, list[tuple[str, str]]] = {}
    for name in ("train", "val"):
        docs = dataset.source(name, "web")
        for number in range(len(docs)):
            line = docs.origin(number)[1]
            assert docs.kept(number) == {"n": len(texts[line - 1])}
            seen.setdefault(line, []).append((name, in_order(docs[number]["tokens"].tolist())))
    for line, found in seen.items():
        assert len({name for name, _ in found}) == 1, "a text's pieces share its split"
        assert "".join(text for _, text in found) == texts[line - 1]
    assert len(seen) == len(kept)
    entries = manifest(tmp_path / "out")["sources"].values()
    pieces = sum(entry["documents"] for entry in entries)
    assert {entry["statistics"]["added"] for entry in entries} == {pieces - len(kept)}
    for name in ("characters", "raw_bytes"):
        assert sum(entry["statistics"][name] for entry in entries) == sum(map(len, kept)), name


def test_documents_stay_whole_where_asked_to(tmp_path: Path) -> None:
    texts = [CODE[start:] for start in (0, 9_000, 14_000, len(CODE) - 40)]
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/in.jsonl", [{"text": text} for text in texts])
    run_here(tmp_path / "in", tmp_path / "out", task="fim", **FIM, fim_context=0)
    (entry,) = manifest(tmp_path / "out")["sources"].values()
    golden = "ffcbf73f2ee5f73e4aa3dd0f0d0fdc1b19910b845d55fa532402fceab76024be"
    assert [shard["sha256"] for shard in entry["shards"]] == [golden]
    with pytest.raises(InputError, match="fim_context was 0, is 2048"):
        run_here(tmp_path / "in", tmp_path / "out", task="fim", **FIM, append=True)
