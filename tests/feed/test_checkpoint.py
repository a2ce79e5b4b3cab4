"""A loader in Orbax's checkpoints, in each of the ways Orbax has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grain
import numpy as np
import orbax.checkpoint as ocp
import orbax.checkpoint.experimental.v1 as ocp_v1
import pytest

import jaxdata
from jaxdata.errors import StateMismatch
from jaxdata.feed.checkpoint import LoaderHandler
from jaxdata.testing import assert_same_batches
from tests.feed.test_loader import DOCUMENTS, REFERENCE, loader


def moved(steps: int) -> jaxdata.Loader:
    one = loader()
    one.seek(step=steps)
    return one


def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path) -> None:
    one = moved(2)
    with ocp.CheckpointManager(tmp_path) as manager:
        items = {"model": ocp.args.JsonSave({"a": 1}), "loader": jaxdata.LoaderSave(one)}
        manager.save(2, args=ocp.args.Composite(**items))
        next(one)  # while it is written
        manager.wait_until_finished()
        other = loader(12, shard=(1, 2))  # another process count and batch size
        restored = manager.restore(2, args=ocp.args.Composite(loader=jaxdata.LoaderRestore(other)))
    assert restored["loader"] is other
    assert other.next_row == 48
    assert np.array_equal(next(other)["inputs"], REFERENCE[2]["inputs"][6:12])
    with ocp.CheckpointManager(tmp_path) as manager:
        plain = manager.restore(2, args=ocp.args.Composite(loader=ocp.args.JsonRestore()))
    assert plain["loader"] == moved(2).get_state(), "it is the file of JsonSave"


def save(path: Path, args: Any) -> None:
    with ocp.CheckpointManager(path) as manager:
        manager.save(3, args=ocp.args.Composite(loader=args))


def restore(path: Path, args: Any) -> Any:
    with ocp.CheckpointManager(path) as manager:
        return manager.restore(3, args=ocp.args.Composite(loader=args))["loader"]


def test_a_handler_without_a_manager(tmp_path: Path) -> None:
    with ocp.Checkpointer(LoaderHandler()) as checkpointer:
        checkpointer.save(tmp_path / "here", args=jaxdata.LoaderSave(moved(1)))
        other = checkpointer.restore(tmp_path / "here", args=jaxdata.LoaderRestore(loader()))
    assert_same_batches([next(other)], REFERENCE[1:2])


def test_grains_files_are_restored_on_any_number_of_processes(tmp_path: Path) -> None:
    assert isinstance(moved(3), grain.DatasetIterator)
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
    other = loader(48)
    ocp_v1.load_checkpointables(tmp_path / "c", {"loader": other})
    assert other.next_row == 48
    assert np.array_equal(next(other)["inputs"][:24], REFERENCE[2]["inputs"])


def test_other_rows_are_refused(tmp_path: Path) -> None:
    other = loader(rows=jaxdata.pack(DOCUMENTS, seq_len=16, order=1, block=128))
    save(tmp_path, jaxdata.LoaderSave(moved(1)))
    with pytest.raises(StateMismatch, match="seq_len was 32, is 16: set seq_len back, or"):
        restore(tmp_path, jaxdata.LoaderRestore(other))
    (tmp_path / "3" / "loader" / "metadata").unlink()
    with pytest.raises(StateMismatch, match=r"no loader state in .*3/loader: expected the file"):
        restore(tmp_path, jaxdata.LoaderRestore(other))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 10**5, b"9" * 5000])
def test_a_file_that_is_damaged_is_named(tmp_path: Path, content: bytes) -> None:
    save(tmp_path, jaxdata.LoaderSave(moved(1)))
    (tmp_path / "3" / "loader" / "metadata").write_bytes(content)
    with pytest.raises(StateMismatch, match=r"3/loader/metadata is damaged .*: restore an earlier"):
        restore(tmp_path, jaxdata.LoaderRestore(loader()))
