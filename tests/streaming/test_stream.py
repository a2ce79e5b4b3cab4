"""Text streamed without a dataset: every token once, and resumed at any step."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata import tokenizers
from jaxdata.converter import texts
from jaxdata.errors import InputError, StateMismatch, WorkerDied
from jaxdata.processes import Worker
from jaxdata.testing import assert_exactly_once, assert_resumes_everywhere, assert_same_batches

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")
STRATEGIES = ["best_fit", "concat", "pad"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Seven formats, 400 documents, the empty one and one longer than many rows among them."""
    folder = tmp_path_factory.mktemp("texts")
    chance = np.random.default_rng(0)
    documents = [
        "".join(chance.choice(list("abcdefgh \n"), size)) for size in chance.integers(0, 90, 400)
    ]
    documents[7], documents[150] = "", "long " * 400
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in documents]
    (folder / "a.jsonl").write_bytes(b"".join(lines[:100]) + b"\nnot JSON\n")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[100:180])))
    table = pyarrow.table({"text": documents[180:279]})
    pyarrow.parquet.write_table(table, folder / "c.parquet", row_group_size=20)
    (folder / "d.txt").write_text(documents[279])
    packed = zstandard.ZstdCompressor().compress(b"".join(lines[280:330]))
    (folder / "e.jsonl.zst").write_bytes(packed)
    (folder / "f.json").write_bytes(b"[" + b",".join(lines[330:360]) + b"]")
    with tarfile.open(folder / "g.tar", "w") as archive:
        for number, some in enumerate((lines[360:370], lines[370:])):
            member = tarfile.TarInfo(f"{number}.jsonl")
            member.size = len(b"".join(some))
            archive.addfile(member, io.BytesIO(b"".join(some)))
    return sorted(folder.iterdir())


def stream(files: Any, **options: Any) -> Any:
    chosen = {"tokenizer": "bytes", "seq_len": 64, "batch_size": 4, "buffer": 50, "num_workers": 0}
    return jaxdata.stream_text(files, **chosen | options)


def documents(files: Any) -> jaxdata.ArrayDocuments:
    """What the files hold, tokenised by hand."""
    return jaxdata.ArrayDocuments([[*text.encode(), 256] for text in texts(files)])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_token_once_a_pass(files: list[Path], strategy: str, shuffle: bool) -> None:
    made = list(stream(files, strategy=strategy, shuffle=shuffle, epochs=2))
    assert_exactly_once(made, [documents(files)], epochs=2)
    assert {array.shape for batch in made for array in batch.values()} == {(4, 64)}


def test_overlap_is_without_loss(files: list[Path]) -> None:
    made = list(stream(files, overlap=16))
    assert_exactly_once(made, [documents(files)])
    filled = sum(int((batch["segment_ids"] > 0).sum()) for batch in made)
    assert filled > sum(int(batch["loss_mask"].sum()) for batch in made)


@pytest.mark.parametrize("shards", [2, 3])
def test_hosts_share_the_documents(files: list[Path], shards: int) -> None:
    parts = [list(stream(files, batch_size=6, shard=(part, shards))) for part in range(shards)]
    assert {array.shape for batch in parts[0] for array in batch.values()} == {(6 // shards, 64)}
    assert_exactly_once([batch for part in parts for batch in part], [documents(files)])
    every_nth = jaxdata.ArrayDocuments([d["tokens"] for d in list(documents(files))[1::shards]])
    assert_exactly_once(parts[1], [every_nth])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "concat", "buffer": 7},
        {"epochs": 2, "buffer": 1000, "batch_size": 30},
        {"batch_size": 6, "shard": (1, 3), "epochs": 2},
    ],
    ids=str,
)
def test_it_resumes_at_every_step(files: list[Path], options: dict[str, Any]) -> None:
    steps = assert_resumes_everywhere(lambda: stream(files, **options), tail=3)
    assert steps > 10


def test_what_remains_after_any_step_is_the_rest(files: list[Path]) -> None:
    whole = stream(files)
    before, states = [], [whole.get_state()]
    for batch in whole:
        before.append(batch)
        states.append(json.loads(json.dumps(whole.get_state())))
    for step in range(0, len(states), 9):
        rest = stream(files)
        rest.set_state(states[step])
        assert_exactly_once([*before[:step], *rest], [documents(files)])


def halves(record: dict[str, Any]) -> list[dict[str, Any]]:
    """A transform: two documents of each."""
    text = record["text"]
    return [{"text": text[: len(text) // 2]}, {"text": text[len(text) // 2 :]}]


def test_the_options_of_the_converter(files: list[Path]) -> None:
    options = {"transform": halves, "min_chars": 10, "max_tokens": 500, "buffer": 7}
    made = stream(files, **options)
    batches = list(made)
    kept = [half["text"] for text in texts(files) for half in halves({"text": text})]
    kept = [text for text in kept if len(text) >= 10 and len(text.encode()) < 500]
    expected = jaxdata.ArrayDocuments([[*text.encode(), 256] for text in kept])
    assert_exactly_once(batches, [expected])
    assert "shorter than 10 characters" in made.report()
    assert "2 longer than 500 tokens" in made.report()
    assert assert_resumes_everywhere(lambda: stream(files, **options), tail=2) > 10
    with pytest.raises(InputError, match="split_ratio is for datasets only"):
        stream(files, split_ratio="train=1")


def test_tasks_with_masks(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    pairs = [{"prompt": f"what is {n}?", "completion": f" it is {n}"} for n in range(30)]
    path.write_text("\n".join(map(json.dumps, pairs)))
    batches = list(stream(path, task="sft"))
    answers = sum(len(pair["completion"]) + 1 for pair in pairs)
    assert sum(int(batch["loss_mask"].sum()) for batch in batches) == answers
    learnt = b"".join(
        bytes(row[mask & (row < 256)].astype(np.uint8))
        for batch in batches
        for row, mask in zip(batch["targets"], batch["loss_mask"], strict=True)
    )
    assert b"what" not in learnt
    assert learnt.count(b"it is") == 30
    with pytest.raises(InputError, match="the task 'dpo' makes several sources"):
        stream(path, task="dpo")


def test_grain_saves_and_restores_it(files: list[Path], tmp_path: Path) -> None:
    one, other = stream(files), stream(files)
    for _ in range(5):
        next(one)
    with ocp.CheckpointManager(tmp_path, item_names=("text",)) as manager:
        saved = ocp.args.Composite(text=grain.checkpoint.CheckpointSave(one))
        manager.save(5, args=saved)
        manager.wait_until_finished()
        manager.restore(5, args=ocp.args.Composite(text=grain.checkpoint.CheckpointRestore(other)))
    assert_same_batches(islice(one, 3), islice(other, 3))


def test_the_batch_size_may_change(files: list[Path]) -> None:
    one = stream(files, batch_size=4)
    before = [next(one) for _ in range(5)]
    other = stream(files, batch_size=11, prefetch=0)
    other.set_state(one.get_state())
    assert_exactly_once([*before, *other], [documents(files)])


def test_the_state_is_small_and_holds_no_data(files: list[Path]) -> None:
    one = stream(files, shard=(0, 2), epochs=None)
    for _ in islice(one, 150):
        pass
    assert len(json.dumps(one.get_state())) < 1000
    assert one.get_state()["position"]["epoch"] > 0
    one.close()


@pytest.mark.slow
def test_workers_and_prefetch_change_nothing(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(stream(files, prefetch=0, buffer=200))
    monkeypatch.setattr("jaxdata.streaming.text_blocks._CHUNK_DOCUMENTS", 3)
    for workers, prefetch in ((1, 2), (3, 0)):
        made = stream(files, num_workers=workers, prefetch=prefetch, buffer=200)
        assert_same_batches(expected, made)
        made.close()


def test_another_seed_and_epoch_is_another_order(files: list[Path]) -> None:
    def rows(**options: Any) -> list[bytes]:
        made = stream(files, strategy="pad", **options)
        return [row.tobytes() for batch in made for row in batch["inputs"]]

    once = rows()
    assert rows() == once
    assert rows(seed=1) != once
    assert sorted(rows(seed=1)) == sorted(once)
    twice = [row for row in rows(epochs=2) if any(row)]
    once = [row for row in once if any(row)]
    assert twice[: len(once)] == once
    assert twice[len(once) :] != once


def test_the_rows_stay_the_same_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "fixed.jsonl"
    lines = [json.dumps({"text": f"document {number} " * (number % 7)}) for number in range(90)]
    path.write_text("\n".join(lines))
    made = stream(path, buffer=20, batch_size=8)
    digest = hashlib.sha256()
    for batch in islice(made, 5):
        for name, array in batch.items():
            digest.update(name.encode() + array.tobytes())
    assert digest.hexdigest()[:16] == "28d1de29e3799e50"
    assert made.get_state()["position"] == {
        "epoch": 0,
        "block": 6,
        "file": 0,
        "unit": 0,
        "part": 0,
        "record": 58,
        "line": 0,
        "document": 58,
        "row": 5,
    }


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    line = json.dumps({"text": "some words " * 500}) + "\n"
    with path.open("w") as file:
        for _ in range(20):
            file.write(line * 500)
    code = f"""if True:
        import resource, sys, jaxdata
        stream = jaxdata.stream_text({str(path)!r}, tokenizer="bytes", seq_len=2048,
                                     batch_size=64, buffer=500, num_workers=0)
        peaks = []
        for batch in stream:
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        print(peaks[len(peaks) // 4], peaks[-1], len(peaks))
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    early, late, batches = map(int, done.stdout.split())
    assert batches > 400
    assert late - early < 25


@pytest.mark.slow
def test_real_text_with_worker_processes(shared_data: Path, tmp_path: Path) -> None:
    spec = f"sentencepiece:{shared_data}/tokenizers/sentencepiece/test_model.model"
    chosen = list(islice(texts(shared_data / "web.parquet"), 200))
    for name, some in (("a.jsonl", chosen[:120]), ("b.jsonl", chosen[120:])):
        lines = [json.dumps({"page": {"text": text}}) for text in some]
        (tmp_path / name).write_text("\n".join(lines))
    options = {"text_key": "page.text", "num_workers": 2, "seq_len": 512, "overlap": 128}
    made = list(stream(tmp_path, tokenizer=spec, **options))
    tokenizer = tokenizers.load(spec)
    expected = [[*ids, tokenizer.eod_id] for ids in tokenizer.encode(chosen)]
    assert_exactly_once(made, [jaxdata.ArrayDocuments(expected)])


def test_bad_lines_are_counted_and_reported(files: list[Path]) -> None:
    made = stream(files)
    with pytest.warns(UserWarning, match=r"left out: 1 not JSON; the first is .*a\.jsonl:102: not"):
        list(made)
    assert made.report().startswith("400 documents, ")
    assert "1 not JSON" in made.report()


def test_it_says_when_converting_pays(files: list[Path]) -> None:
    told = r"convert it once: jaxdata convert a\.jsonl … --output"
    with pytest.warns(UserWarning, match=told) as warned:
        jaxdata.stream_text(files, tokenizer="bytes", seq_len=8)
    assert warned[0].filename == __file__, "it names the caller's line"


def test_what_cannot_be_is_refused(files: list[Path], tmp_path: Path) -> None:
    for options, says in [
        ({"seq_len": 0}, "seq_len=0: expected at least 1"),
        ({"strategy": "worst_fit"}, "strategy='worst_fit'"),
        ({"buffer": 0}, "buffer=0: expected 1 or more"),
        ({"shard": (2, 2)}, r"shard=(2, 2): expected (i, n)"),
        ({"batch_size": 5, "shard": (0, 2)}, "cannot be divided among 2 shards"),
        ({"bos": True}, "has no begin-of-sequence token"),
        ({"layout": "square"}, "layout='square'"),
        ({"text_key": "body"}, "has no column 'body'"),
    ]:
        with pytest.raises(InputError) as refused:
            stream(files, **options)
        assert says in str(refused.value)
    path = tmp_path / "three.jsonl"
    path.write_text('{"text": "a"}\n' * 3)
    with pytest.raises(InputError, match=r"nothing to train on.*3 no key 'body'; the first is.*:1"):
        list(stream(path, text_key="body", epochs=None))
    with pytest.raises(InputError, match=r"shard \(3, 4\) of 1 files hold nothing"):
        list(stream(path, shard=(3, 4)))


def test_a_state_of_another_stream_is_refused(files: list[Path], tmp_path: Path) -> None:
    state = stream(files, shard=(0, 2)).get_state()
    for options, says in [
        ({"shard": (1, 2)}, r"shard\[0\] was 0, is 1"),
        ({"shard": (0, 2), "seed": 1}, "seed was 0, is 1"),
        ({"shard": (0, 2), "seq_len": 65}, "seq_len was 64, is 65"),
        ({"shard": (0, 2), "buffer": 51}, "buffer was 50, is 51"),
    ]:
        with pytest.raises(StateMismatch, match=says):
            stream(files, **options).set_state(state)
    path = tmp_path / "changing.jsonl"
    path.write_text('{"text": "one"}\n')
    state = stream(path).get_state()
    path.write_text('{"text": "two"}\n')
    with pytest.raises(StateMismatch, match=r"inputs was '\w+', is"):
        stream(path).set_state(state)


def test_it_is_a_one_pass_iterator(files: list[Path]) -> None:
    made = stream(files)
    expected = list(made)
    with pytest.raises(InputError, match=r"call reset\(\)"):
        iter(made)
    made.reset()
    assert_same_batches(expected, made)


def test_to_devices(files: list[Path]) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    placed = list(stream(files, sharding=sharding))
    assert placed[0]["inputs"].sharding == sharding
    assert_same_batches(stream(files), placed)
    with pytest.raises(InputError, match="not both"):
        stream(files, sharding=sharding, shard=(0, 1))


def test_layouts_and_bytes(files: list[Path]) -> None:
    plain, laid_out = next(stream(files)), next(stream(files, layout="maxtext"))
    assert np.array_equal(plain["segment_ids"], laid_out["inputs_segmentation"])
    assert stream(files).token_bytes.tolist() == [1] * 256 + [0]


@pytest.mark.slow
def test_a_killed_worker_is_named(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    workers: list[Worker] = []
    start = Worker.__init__

    def noted(self: Worker, *args: Any) -> None:
        start(self, *args)
        workers.append(self)

    monkeypatch.setattr(Worker, "__init__", noted)
    made = stream(files, num_workers=2, epochs=None)
    next(made)
    os.kill(workers[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"text_blocks:serve\) ended early: SIGKILL"):
        for _ in made:
            pass
    state = made.get_state()
    made.close()
    again, other = stream(files, epochs=None), stream(files, epochs=None)
    again.set_state(state)
    rows = state["next_row"] // 4
    assert_same_batches(islice(again, 3), islice(other, rows, rows + 3))
    for one in (again, other):
        one.close()


def test_closing_ends_its_threads(files: list[Path]) -> None:
    before = threading.active_count()
    for taken in (0, 1, 5):
        made = stream(files, epochs=None, prefetch=3)
        made.start_prefetch()
        for _ in islice(made, taken):
            pass
        made.close()
    assert threading.active_count() == before
    with pytest.raises(ValueError, match="closed"):
        next(made)


def slow(record: dict[str, Any]) -> dict[str, Any]:
    """A transform that takes its time."""
    time.sleep(0.02)
    return record


@pytest.mark.slow
def test_closing_while_the_first_block_is_made(files: list[Path]) -> None:
    made = stream(files, transform=slow, num_workers=1, buffer=16 * 50)  # 50 in the first
    made.start_prefetch()
    time.sleep(0.2)
    closing = threading.Thread(target=made.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
