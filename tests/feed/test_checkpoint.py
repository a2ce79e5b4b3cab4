"""A loader in Orbax's checkpoints, in each of the ways Orbax has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grain
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest

import jaxdata
from jaxdata.errors import StateMismatch
from jaxdata.testing import assert_same_batches, distinct_documents

DOCUMENTS = jaxdata.ArrayDocuments(distinct_documents([30] * 200), name="train/a")
ROWS = jaxdata.pack(DOCUMENTS, seq_len=32)


def loader(batch_size: int = 8, **settings: Any) -> jaxdata.Loader:
    return jaxdata.Loader(ROWS, batch_size=batch_size, **settings)


REFERENCE = list(loader())


def moved(steps: int) -> jaxdata.Loader:
    one = loader()
    for _ in range(steps):
        next(one)
    return one


def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path) -> None:
    one = moved(2)
    with ocp.CheckpointManager(tmp_path) as manager:
        items = {"model": ocp.args.JsonSave({"a": 1}), "loader": jaxdata.LoaderSave(one)}
        manager.save(2, args=ocp.args.Composite(**items))
        next(one)  # while it is written
        manager.wait_until_finished()
        other = loader(4, shard=(1, 2))  # another process count and batch size
        restored = manager.restore(2, args=ocp.args.Composite(loader=jaxdata.LoaderRestore(other)))
    assert restored["loader"] is other
    assert other.next_row == 16
    assert np.array_equal(next(other)["inputs"], REFERENCE[2]["inputs"][2:4])


def test_without_a_manager(tmp_path: Path) -> None:
    from jaxdata.feed.checkpoint import LoaderHandler

    with ocp.Checkpointer(LoaderHandler()) as checkpointer:
        checkpointer.save(tmp_path / "here", args=jaxdata.LoaderSave(moved(1)))
        other = checkpointer.restore(tmp_path / "here", args=jaxdata.LoaderRestore(loader()))
    assert_same_batches(other, REFERENCE[1:])


def save(path: Path, args: Any) -> None:
    with ocp.CheckpointManager(path) as manager:
        manager.save(3, args=ocp.args.Composite(loader=args))


def restore(path: Path, args: Any) -> Any:
    with ocp.CheckpointManager(path) as manager:
        return manager.restore(3, args=ocp.args.Composite(loader=args))["loader"]


def test_it_is_the_file_of_json_save(tmp_path: Path) -> None:
    one, other = moved(3), loader()
    save(tmp_path / "json", ocp.args.JsonSave(one.get_state()))
    restore(tmp_path / "json", jaxdata.LoaderRestore(other))
    assert other.get_state() == one.get_state()
    save(tmp_path / "ours", jaxdata.LoaderSave(one))
    assert restore(tmp_path / "ours", ocp.args.JsonRestore()) == one.get_state()


def test_grains_files_are_restored_on_any_number_of_processes(tmp_path: Path) -> None:
    save(tmp_path, grain.checkpoint.CheckpointSave(moved(3)))
    (file,) = tmp_path.glob("3/loader/process_*.json")
    file.rename(file.with_name("process_3-of-8.json"))  # as one host of 8 writes it
    assert_same_batches(restore(tmp_path, jaxdata.LoaderRestore(loader())), REFERENCE[3:])


def test_checkpointables(tmp_path: Path) -> None:
    one = moved(2)
    response = ocp_v1.save_checkpointables_async(tmp_path / "c", {"loader": one, "extra": {"a": 1}})
    next(one)
    response.result()
    assert [path.name for path in (tmp_path / "c" / "loader").iterdir()] == ["metadata"]
    other = loader(16)
    ocp_v1.load_checkpointables(tmp_path / "c", {"loader": other})
    assert other.next_row == 16
    assert np.array_equal(next(other)["inputs"][:8], REFERENCE[2]["inputs"])


def test_other_rows_are_refused(tmp_path: Path) -> None:
    other = jaxdata.Loader(jaxdata.pack(DOCUMENTS, seq_len=16), batch_size=8)
    save(tmp_path, jaxdata.LoaderSave(moved(1)))
    with pytest.raises(StateMismatch, match="seq_len was 32, is 16: set seq_len back, or"):
        restore(tmp_path, jaxdata.LoaderRestore(other))
    (tmp_path / "3" / "loader" / "metadata").unlink()
    with pytest.raises(StateMismatch, match=r"no loader state in .*3/loader: expected the file"):
        restore(tmp_path, jaxdata.LoaderRestore(other))


def test_skips_and_sizes_are_in_it(tmp_path: Path) -> None:
    one, other = moved(2), loader(4)
    one.skip(20, 30)
    next(one)
    save(tmp_path, jaxdata.LoaderSave(one))
    restore(tmp_path, jaxdata.LoaderRestore(other))
    assert (other.step, other.next_row) == (3, 34)
    assert json.dumps(other.get_state()) == json.dumps(one.get_state())


@pytest.mark.parametrize("content", [b"", b'{"version": 1', b"\xff\xfe", b"[" * 10**5, b"9" * 5000])
def test_a_file_that_is_damaged_is_named(tmp_path: Path, content: bytes) -> None:
    save(tmp_path, jaxdata.LoaderSave(moved(1)))
    (tmp_path / "3" / "loader" / "metadata").write_bytes(content)
    with pytest.raises(StateMismatch, match=r"3/loader/metadata is damaged .*: restore an earlier"):
        restore(tmp_path, jaxdata.LoaderRestore(loader()))
