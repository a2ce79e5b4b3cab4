"""MaxText's own trainer and checkpoints on the rows of a config; each run is a process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jaxdata.base.processes import held_port
from tests import builders
from tests.clients.installed.promises import needs
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB, config_of

maxtext = needs("maxtext", "maxtext")
MODEL: dict[str, Any] = {"vocab_size": VOCAB, "max_target_length": SEQ_LEN, "head_dim": 16}
MODEL |= {"base_emb_dim": 32, "base_num_query_heads": 2, "base_num_kv_heads": 2}
MODEL |= {"base_mlp_dim": 64, "base_num_decoder_layers": 1, "attention": "dot_product"}
MODEL |= {"dtype": "float32", "weight_dtype": "float32", "scan_layers": False}
RUN = {"hardware": "cpu", "skip_jax_distributed_system": True, "enable_tensorboard": False}
RUN |= {"enable_checkpointing": True, "async_checkpointing": False, "checkpoint_period": 2}
RUN |= {"run_name": "run"}
ONE_DEVICE = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
PROCESS = """
import sys, jax
number, count, port = map(int, sys.argv[1:4])
if count > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", count, number)
from jaxdata.clients.maxtext import main
main(sys.argv[4:])
"""


class Training:
    """Runs that go on from the checkpoints of a folder."""

    def __init__(self, folder: Path, run: str, **settings: Any) -> None:
        self.folder, self.run, self.settings = folder, run, settings
        folder.mkdir()

    def start(self, steps: int, number: int, count: int, port: int) -> subprocess.Popen[bytes]:
        """Start one process of some."""
        base = Path(maxtext.__file__).parent / "configs/base.yml"
        given = MODEL | RUN | self.settings | {"base_output_directory": self.folder}
        given |= {"steps": steps, "per_device_batch_size": ROWS // count}
        given |= {"metrics_file": self.folder / f"{steps}.jsonl"}
        arguments = [base, f"jaxdata={self.run}", *(f"{name}={it}" for name, it in given.items())]
        command = [sys.executable, "-c", PROCESS, *map(str, (number, count, port, *arguments))]
        environment = os.environ | ONE_DEVICE | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.folder / "said.txt").open("ab") as said:
            own: Any = {"stdout": said, "stderr": said, "env": environment}
            return subprocess.Popen(command, **own, start_new_session=True)

    def train(self, steps: int, count: int = 1) -> dict[int, float]:
        """The loss of each step up to so many, by all processes."""
        with held_port() as port:
            started = [self.start(steps, number, count, port) for number in range(count)]
            codes = [each.wait() for each in started]
        assert not any(codes), self.said[-4_000:]
        lines = (self.folder / f"{steps}.jsonl").read_text().splitlines()
        return {int(line["step"]): line["learning/loss"] for line in map(json.loads, lines)}

    def kill_after_two_steps(self) -> None:
        """Train until there is a checkpoint of step 2, and not a moment longer."""
        process = self.start(6, 0, 1, 0)
        while not (self.folder / "run/checkpoints/2").exists():
            assert process.poll() is None, self.said[-4_000:]
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        (self.folder / "6.jsonl").unlink(missing_ok=True)

    @property
    def said(self) -> str:
        """What all runs printed."""
        return (self.folder / "said.txt").read_text()


class TestMaxText:
    @pytest.fixture(scope="class")
    def run(self, text: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
        return str(builders.run(tmp_path_factory.mktemp("run"), **config_of(text)))

    @pytest.fixture(scope="class")
    def whole(self, run: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
        """Six steps of one run."""
        losses = Training(tmp_path_factory.mktemp("whole") / "m", run).train(6)
        assert len({*losses.values()}) == len(losses) == 6
        return losses

    @pytest.mark.parametrize("emergency", [False, True])
    def test_a_killed_run_goes_on_to_the_bit(
        self, run: str, whole: dict[int, float], tmp_path: Path, emergency: bool
    ) -> None:
        """By its position, or by the step of an emergency checkpoint, which holds none."""
        settings: dict[str, Any] = {}
        if emergency:
            local = {"local_checkpoint_directory": tmp_path / "local", "local_checkpoint_period": 2}
            settings = {"enable_emergency_checkpoint": True, **local}
        training = Training(tmp_path / "m", run, **settings)
        training.kill_after_two_steps()
        losses = training.train(6)
        assert losses == {step: whole[step] for step in losses}
        assert 2 < min(losses) <= 5
        assert ("going on by its step" in training.said) == emergency

    def test_two_processes_train_the_same_rows_and_one_goes_on(
        self, run: str, whole: dict[int, float], tmp_path: Path
    ) -> None:
        training = Training(tmp_path / "m", run)
        losses = training.train(4, count=2) | training.train(6)
        assert losses == pytest.approx(whole, rel=2e-4)  # float32, sums in another order
