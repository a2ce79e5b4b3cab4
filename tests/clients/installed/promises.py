"""What holds of each client in its trainer: by hand, resumed to the bit, on two processes."""

import importlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.processes import held_port
from tests.clients.tiny import CLOSE, SEQ_LEN, config_of


def needs(module: str, trainer: str) -> Any:
    """A trainer's module; without it the tests of a file skip, unless .ci/run installed it."""
    if os.environ.get("JAXDATA_TEST_INSTALLED"):
        return importlib.import_module(module)
    where = f"apart, from clients/installed/{trainer}.txt"
    return pytest.importorskip(module, reason=f"{trainer} is not here; .ci/run installs it {where}")


@dataclass
class Steps:
    """What was seen of the steps that one process trained."""

    losses: list[float] = field(default_factory=list)
    by_hand: list[float] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    """of each step, (micro-batches, rows, seq_len), of this process"""


Train = Callable[..., Steps]


class Promises:
    """Tests of one trainer.

    `train(run, folder, steps, native)` goes on from the folder's checkpoint to so many steps and
    saves one; where there are native batches it works out their losses by hand. `rank(number,
    ranks, port, run, folder)` goes on to six as one of several processes.
    """

    train: Train
    rank: Train
    elastic_tolerance = CLOSE
    """relative: sums have another order on two processes"""

    @pytest.fixture(scope="class")
    def data(self, text: Path) -> dict[str, Any]:
        return config_of(text)

    @pytest.fixture(scope="class")
    def whole(self, data: Any, tmp_path_factory: pytest.TempPathFactory) -> Steps:
        """Six steps of one run."""
        return self.train(data, tmp_path_factory.mktemp("whole"), 6, jaxdata.load(data))

    @pytest.fixture(scope="class")
    def ended(self, data: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The folder of a run that ended after three."""
        folder = tmp_path_factory.mktemp("half")
        self.train(data, folder, 3)
        return folder

    @pytest.fixture
    def half(self, ended: Path, tmp_path: Path) -> Path:
        """A copy of it."""
        return Path(shutil.copytree(ended, tmp_path / "run"))

    def test_six_steps_have_the_losses_worked_out_by_hand(self, data: Any, whole: Steps) -> None:
        assert len(whole.losses) == len(set(whole.losses)) == 6
        assert whole.losses == pytest.approx(whole.by_hand, rel=CLOSE)
        for tokens, batch in zip(whole.tokens, jaxdata.load(data), strict=False):
            assert np.array_equal(np.concatenate(tokens), batch["inputs"])

    def test_three_and_three_are_six_to_the_bit(self, data: Any, whole: Any, half: Path) -> None:
        assert self.train(data, half, 6).losses == whole.losses[3:]

    def test_two_processes_go_on_where_one_ended(self, data: Any, whole: Any, half: Path) -> None:
        found = in_two_processes(self.rank, data, half)
        for number, both in enumerate(zip(*(each.tokens for each in found), strict=True), 3):
            rows = np.concatenate(both, axis=1).reshape(-1, SEQ_LEN)
            assert np.array_equal(rows, np.concatenate(whole.tokens[number]))
        for each in found:
            assert each.losses == pytest.approx(whole.losses[3:], rel=self.elastic_tolerance)


def in_two_processes(function: Callable[..., Any], *given: Any) -> list[Any]:
    """What `function(number, 2, port, *given)` returns in each of two new processes."""
    with held_port() as port, ProcessPoolExecutor(2, get_context("spawn")) as pool:
        started = [pool.submit(function, number, 2, port, *given) for number in range(2)]
        return [each.result() for each in started]


def join_jax(number: int, ranks: int, port: int) -> None:
    """Make this process one of several, with a device each."""
    import jax

    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    jax.distributed.initialize(f"127.0.0.1:{port}", ranks, number)


def held(array: Any) -> Any:
    """The rows of a batch on this process's devices, as one micro-batch of tokens."""
    rows = [np.asarray(shard.data) for shard in array.addressable_shards]
    return np.concatenate(rows)[None, :, :SEQ_LEN]
