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
from tests.converter.here import manifest, run_here
from tests.converter.tasks.test_plain_texts import FIM, in_order
from tests.tokenizers import made
from tests.tokenizers.test_tokenizers import open_one

CODE = "".join(f"def f{n}(x):\n    return x + {n}\n" for n in range(400))


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_exactly_the_assistants_words_have_loss_in_batches(
    tmp_path: Path, shared_data: Path
) -> None:
    file = shared_data / "instruct/v1_sft_demo.jsonl"
    records = [json.loads(line)["messages"] for line in file.read_text().splitlines()[:80]]
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


def test_preferences_become_two_aligned_sources(tmp_path: Path, shared_data: Path) -> None:
    records = json.loads((shared_data / "instruct/dpo_en_demo.json").read_text())[:60]
    report = run_here(
        write(tmp_path / "in.jsonl", records), tmp_path / "out", task="dpo", source="x",
        tokenizer=open_one(shared_data, "cl100k"), chat_template="chatml", template_text_ok=True,
        split_ratio="train=80,val=20",
    )  # fmt: skip
    splits, sides = ("train", "val"), ("chosen", "rejected")
    assert sorted(report.sources) == [f"{split}/x/{side}" for split in splits for side in sides]
    dataset = jaxdata.open_dataset(tmp_path / "out")
    answers = {(r["chosen"]["value"], r["rejected"]["value"]) for r in records}
    seen = 0
    for split in splits:
        both = [dataset.source(split, f"x/{side}") for side in sides]
        rows = jaxdata.pairs(*both, seq_len=2_048, shuffle=False)
        for row in (rows[number] for number in range(len(rows))):
            targets = (row[f"{side}_targets"][row[f"{side}_loss_mask"]] for side in sides)
            texts = [dataset.decode(tokens) for tokens in targets]
            assert tuple(text.removesuffix("<|im_end|>") for text in texts) in answers
            seen += 1
    assert seen == 60


def test_tables_hold_conversations_and_pairs(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "é"}]
    pairs = {"prompt": ["q"] * 3, "completion": ["é", "é", ""]}
    pq.write_table(pa.table({"messages": [messages] * 3} | pairs), tmp_path / "in.parquet")
    common: dict[str, Any] = {"task": "sft", "separator": "|"}
    keys = {"prompt_key": "prompt", "completion_key": "completion"}
    run_here(tmp_path / "in.parquet", tmp_path / "out", source="chats", **common)
    report = run_here(tmp_path / "in.parquet", tmp_path / "out", source="pairs", **common, **keys)
    assert report.dropped == {"an empty prompt or completion": 1}
    dataset = jaxdata.open_dataset(tmp_path / "out")
    for source, count in (("chats", 3), ("pairs", 2)):
        docs = dataset.source("train", source)
        assert [dataset.decode(one["tokens"]) for one in docs] == ["q|é"] * count
        assert dataset.decode(docs[0]["tokens"][docs[0]["loss_mask"]]) == "é"
    with pytest.raises(InputError, match=r"no column 'question'.*with --prompt-key, --completion"):
        run_here(tmp_path / "in.parquet", tmp_path / "no", **common, prompt_key="question",
                 completion_key="completion")  # fmt: skip


def test_the_command_takes_the_options_of_its_task(tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", [{"q": "2+2", "a": "4"}, {"q": "", "a": "4"}])
    where = ["--output", tmp_path / "out", "--tokenizer", "bytes", "--source", "x"]

    def said(*given: str, status: int = 0) -> str:
        done = commands.run("convert", file, *where, *given, status=status)
        return done.stdout + done.stderr

    assert "task 'lm': there is no setting 'prompt_key'" in said("--prompt-key", "q", status=1)
    sft = ["--task", "sft", "--prompt-key", "q", "--separator", r"\n"]
    no_key = said(*sft, "--completion-key", "b", status=1)
    assert "no record has the key 'b'; " in no_key
    assert "has 'q', 'a': name one of these with --prompt-key, --comp" in no_key
    assert "dropped 1 record (1 an empty prompt" in said(*sft, "--completion-key", "a")
    dataset = jaxdata.open_dataset(tmp_path / "out")
    (document,) = dataset.source("train", "x")
    assert dataset.decode(document["tokens"]) == "2+2\n4"
    assert "expected an object" in said("--template-variables", "[1]", status=2)


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
    report = run_here(file, tmp_path / "out", source="x", tokenizer=panics)
    bad = map(json.loads, (tmp_path / "out/train/x/quarantine.jsonl").read_text().splitlines())
    assert [(one["file"], one["line"], one["reason"]) for one in bad] == [
        ("in.jsonl", 2, "the tokenizer cannot encode it"),
        ("in.jsonl", 3, "no key 'text'"),
    ]
    assert (report.documents, sum(report.quarantined.values()), report.dropped) == (2, 2, {})
    file = write(tmp_path / "in.jsonl", lines[:2])
    with pytest.raises(InputError, match=r"in\.jsonl:2: the tokenizer cannot encode it"):
        run_here(file, tmp_path / "strict", tokenizer=panics, on_error="fail")


def fim(folder: Path, output: str = "out", **options: Any) -> Any:
    return run_here(folder / "in", folder / output, **{"task": "fim", **FIM} | options)


def test_pieces_belong_to_their_record_and_limits_count_that(tmp_path: Path) -> None:
    kept = [CODE[n:] for n in range(0, 4_000, 400)]
    texts = [*kept, "short", CODE[:90], CODE * 2]
    write(tmp_path / "in/a.jsonl", [{"text": text, "n": len(text)} for text in texts])
    limits = {"min_chars": 6, "max_tokens": 13_000, "min_tokens": 2_500}
    report = fim(tmp_path, keep="n", split_ratio="train=1,val=1", **limits)
    assert report.dropped == {
        "shorter than 6 characters": 1,
        "shorter than 2,500 tokens": 1,
        "longer than 13,000 tokens": 1,
    }
    dataset = jaxdata.open_dataset(tmp_path / "out")
    seen: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for split in ("train", "val"):
        docs = dataset.source(split, "web")
        for number in range(len(docs)):
            assert docs.kept(number) == {"n": len(texts[docs.origin(number)[1] - 1])}
            text = in_order(docs[number]["tokens"].tolist())
            seen.setdefault(docs.origin(number), []).append((split, text))
    for (_, line), found in seen.items():
        assert len({split for split, _ in found}) == 1, "a text's pieces share its split"
        assert "".join(text for _, text in found) == texts[line - 1]
    assert len(seen) == len(kept)
    entries = manifest(tmp_path / "out")["sources"].values()
    pieces = sum(entry["documents"] for entry in entries)
    assert {entry["statistics"]["added"] for entry in entries} == {pieces - len(kept)}
    for name in ("characters", "raw_bytes"):
        assert sum(entry["statistics"][name] for entry in entries) == sum(map(len, kept)), name


@pytest.mark.filterwarnings("ignore:stream_text")
def test_documents_stay_whole_where_asked_to_and_streams_rearrange_pieces(tmp_path: Path) -> None:
    texts = [CODE[start:] for start in (0, 9_000, 14_000, len(CODE) - 40)]
    file = write(tmp_path / "in/in.jsonl", [{"text": text} for text in texts])
    fim(tmp_path, fim_context=0)
    (entry,) = manifest(tmp_path / "out")["sources"].values()
    golden = "ffcbf73f2ee5f73e4aa3dd0f0d0fdc1b19910b845d55fa532402fceab76024be"
    assert [shard["sha256"] for shard in entry["shards"]] == [golden]
    with pytest.raises(InputError, match="fim_context was 0, is 2048"):
        fim(tmp_path, append=True)
    common: dict[str, Any] = {"tokenizer": "bytes", "seq_len": 512, "num_workers": 0, "task": "fim"}
    asked = jaxdata.stream_text(file, **common, **FIM, fim_context=512, fim_rate=1)
    for batch in asked:
        for inputs, ids in zip(batch["inputs"], batch["segment_ids"], strict=True):
            for number in range(1, ids.max() + 1):
                assert {1, 2, 3} <= {*inputs[ids == number].tolist()}
    assert asked.get_state()["run"]["fim_context"] == 512
