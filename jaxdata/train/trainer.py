"""The training loop: step, log, evaluate, checkpoint; resumes from the newest checkpoint.

The log is one JSON object a line, appended across restarts, readable after any kill.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import jax
import numpy as np

from jaxdata.base.errors import InputError, counted
from jaxdata.base.progress import Advance
from jaxdata.base.seeds import derive
from jaxdata.config.config_fields import TrainSettings
from jaxdata.feed.loader import Loader
from jaxdata.feed.steering import WeightsFile, last_asked
from jaxdata.train import model
from jaxdata.train.checkpoint import Checkpoints, check_newest
from jaxdata.train.devices import gather_digests, row_digests, shardings


class Trainer:
    """One run, from the newest checkpoint in `settings.output` to its last step.

    Call `jaxdata.train.devices.prepare` before making one. On several processes, each makes one
    with the same arguments; process 0 writes the log.

    `train`, and each set of `validation` by its name, is a `jaxdata.Loader` of global batches,
    divided as `shardings` says, at its first row; the trainer closes it. `token_bytes` is the
    dataset's, int32 `(vocabulary,)`.
    """

    def __init__(
        self,
        settings: TrainSettings,
        *,
        train: Loader,
        validation: Mapping[str, Loader],
        token_bytes: np.ndarray,
        seed: int = 0,
        control: WeightsFile | None = None,
        say: Callable[[str], None] = print,
        advance: Advance = lambda _step, _steps: None,
    ) -> None:
        _, everywhere = shardings()
        output, self.settings = Path(settings.output), settings
        check_newest(output / "checkpoints")
        self._checkpoints = Checkpoints(output / "checkpoints", settings.keep)
        self.step = self._checkpoints.latest or 0
        self.loader, self._validation = train, validation
        if self.step:
            self.loader.set_state(self._checkpoints.loader_state(self.step))
        self.steps = _last_step(settings, self.loader)
        advance(self.step, self.steps)
        optimizer = model.make_optimizer(settings.optimizer, self.steps)
        key = derive(seed, "model") >> 1  # jax.random.key takes 63 bits
        init = partial(model.init_state, key, settings.model, len(token_bytes), optimizer)
        if self.step:
            like = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere),
                jax.eval_shape(init),
            )
            self.state: model.State = self._checkpoints.state(self.step, like, settings.model)
        else:
            self.state = jax.jit(init, out_shardings=everywhere)()
        self._names = self.loader.source_names
        self._train_step = model.make_step(settings.model, optimizer, everywhere, len(self._names))
        self._control = control
        self._sums = model.make_sums(settings.model, token_bytes, everywhere)
        leader = jax.process_index() == 0
        self._interrupts = Interrupts()
        self._say = say if leader else lambda _line: None
        self._advance = advance
        self._log = RunLog(output / "log.jsonl") if leader else None
        self._pending: list[tuple[int, Mapping[str, Any], np.ndarray]] = []
        """of the steps begun since the last flush: number, metrics, digests of rows here"""
        self._restart_clock()

    def run(self) -> str | None:
        """Train to the last step; a finished run only evaluates.

        Returns:
            The message of the exhausted source, if the data ended before its budget was met.
        """
        self._note(self._describe())
        try:
            with self._interrupts:
                self._train()
            self._flush()
            return self._end()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._save_interrupted()) from None
        finally:
            self._close()

    def _save_interrupted(self) -> str:
        """Save what was trained, and say where the same command goes on."""
        saved = self._checkpoints.latest or 0
        if self.step > saved and jax.process_count() == 1:  # others may be in another step
            self._save()
            saved = self.step
        return f"{saved:,} of {self.steps:,} steps are saved: the same command goes on from there"

    def _end(self) -> str | None:
        """Report how the run ended, and why if the data halted it."""
        error = self.loader.halt() if self.step == len(self.loader) else None
        status, why = ("halted", {"reason": str(error)}) if error else ("done", {})
        self._note({"event": "end", "step": self.step, "status": status, **why})
        if not error:
            output = self.settings.output
            self._say(f"all {self.steps:,} steps are done; checkpoints and the log are in {output}")
            return None
        self._say(f"halted after step {self.step}, which is saved: {error}")
        return str(error)

    def _train(self) -> None:
        if self.settings.eval_every and self.step == 0:
            self._score()
        started = self.step
        if started < self.steps:
            self._say("compiling the first step")
        self._advance(self.step, self.steps)
        while self.step < self.steps:
            self._one_step()
            if self.step == started + 1:
                self._flush()  # the first step compiles: a line of its own
            last = self.step == self.steps
            if last or self._due(self.settings.checkpoint_every):
                with self._interrupts.delayed():
                    self._save()
            if not last and self._due(self.settings.eval_every):
                self._score()
        self._score()

    def _one_step(self) -> None:
        batch = next(self.loader)
        with self._interrupts.delayed():
            rows = row_digests(batch)
            self.state, metrics = self._train_step(self.state, batch)
            self._pending.append((self.step, metrics, rows))
            self.step += 1
        self._advance(self.step, self.steps)
        if self._due(self.settings.log_every):
            self._flush()
            if self._control is not None:
                self._reweigh(self._control)

    def _reweigh(self, control: WeightsFile) -> None:
        """Mix by the weights in a file, where it was changed; every process does."""
        asked_at, row = self.loader.next_row, control.follow(self.loader)
        if row is None:
            return
        weights = last_asked(self.loader.rows)
        facts = {"step": self.step, "row": row, "weights": weights, "asked_at": asked_at}
        self._note({"event": "reweigh", **facts})
        self._say(f"step {self.step}: mixed from row {row:,} on by {weights}")
        self.steps = min(self.settings.steps or len(self.loader), len(self.loader))

    def _restart_clock(self) -> None:
        """Exclude time since the last flush that was no training: compiling, evaluating, saving."""
        self._started, self._waited = time.perf_counter(), float(self.loader.wait_seconds)

    def _note(self, *records: Mapping[str, Any]) -> None:
        if self._log:
            self._log.write(*records)

    def _flush(self) -> None:
        """Wait for the steps begun, write a record of each, and print the last one.

        All processes call it after the same steps, since it gathers row digests.
        """
        if not self._pending:
            return
        digests = gather_digests([rows for _, _, rows in self._pending])
        records: list[dict[str, Any]] = [
            {
                "step": step,
                "loss": float(metrics["loss"]),
                "gradient_norm": float(metrics["gradient_norm"]),
                "targets": int(metrics["targets"]),
                "rows": digest,
            }
            for (step, metrics, _), digest in zip(self._pending, digests, strict=True)
        ]
        seconds = max(time.perf_counter() - self._started, 1e-9)
        waited = self.loader.wait_seconds - self._waited
        records[-1] |= {
            **_losses([metrics for _, metrics, _ in self._pending], self._names),
            "tokens_per_second": sum(record["targets"] for record in records) / seconds,
            "wait_seconds": waited,
            "wait_share": waited / seconds,
        }
        if self._log:  # of each source, and of requests to buckets
            so_far = self.loader.scalars().items()
            records[-1] |= {name: value for name, value in so_far if "/" in name}
        self._pending.clear()
        self._note(*records)
        last = records[-1]
        self._say(
            f"step {last['step'] + 1:>{len(str(self.steps))}}/{self.steps}  loss "
            f"{last['loss']:.4f}  {last['tokens_per_second']:>9,.0f} tokens/s  waited for data "
            f"{100 * last['wait_share']:.1f} %"
        )
        self._restart_clock()

    def _due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _score(self) -> None:
        """Log bits per byte of each set, the same rows every time, and of all of them."""
        if not self._validation:
            return
        self._flush()
        rows = [loader.rows for loader in self._validation.values()]
        tokens = sum(each.table.total(len(each)).trained_tokens for each in rows)
        self._say(f"scoring {tokens:,} tokens")
        scores = {}
        for name, loader in self._validation.items():
            loader.reset()
            scores[name] = model.BitsPerByte()
            for batch in loader:
                sums = self._sums(self.state["params"], batch)
                scores[name] += model.BitsPerByte(**{of: each.item() for of, each in sums.items()})
        score = sum(scores.values(), model.BitsPerByte())
        several = {name: _scored(each) for name, each in scores.items()} if len(scores) > 1 else {}
        self._note({"step": self.step, **_scored(score), **({"sets": several} if several else {})})
        self._say(
            f"step {self.step}/{self.steps}  validation: {score.value:.4f} bits per byte, "
            f"loss {score.loss:.4f} ({score.targets:,} tokens, {score.bytes:,} bytes)"
        )
        for name, each in several.items():
            said = f"{each['bits_per_byte']:.4f} bits per byte, {each['val_loss']:.4f}"
            self._say(f"  {name}: {said}")
        self._restart_clock()

    def _save(self) -> None:
        """Save a checkpoint, and report what the run has read so far, source by source."""
        self._flush()
        self._checkpoints.save(self.step, self.state, self.loader.get_state(), self.settings.model)
        self._note({"event": "checkpoint", "step": self.step})
        if self._log:
            report = self.loader.report()
            self._note({"event": "report", "step": self.step, "read": report.as_dict()})
            self._say(f"step {self.step}/{self.steps}  read so far: {report}")
        self._restart_clock()

    def _describe(self) -> dict[str, Any]:
        """The log record of a start, which is also printed."""
        params = sum(leaf.size for leaf in jax.tree.leaves(self.state["params"]))
        processes = jax.process_count()
        devices = counted(jax.device_count(), f"{jax.default_backend()} device")
        among = f" of {processes} processes" if processes > 1 else ""
        todo = f"resumed after step {self.step}" if self.step else f"{self.steps:,} steps to go"
        self._say(f"{params:,} params on {devices}{among}, {todo}")
        if self.settings.steps is not None and self.steps < len(self.loader):
            self._say(
                f"train.steps={self.steps:,} ends before the curriculum, which has "
                f"{len(self.loader):,} steps: the rest is not trained"
            )
        amended = self.loader.get_state().get("amendments")
        return {
            "event": "start",
            "step": self.step,
            "steps": self.steps,
            "params": params,
            "devices": jax.device_count(),
            "processes": processes,
            "backend": jax.default_backend(),
            **({"amendments": amended} if amended else {}),
        }

    def _close(self) -> None:
        for each in (self._checkpoints, self.loader, *self._validation.values(), self._log):
            if each is not None:
                each.close()


def _last_step(settings: TrainSettings, loader: Any) -> int:
    available = len(loader)
    if settings.steps is None or (settings.steps > available and loader.halt()):
        return available
    if settings.steps > available:
        raise InputError(
            f"train.steps is {settings.steps:,}, but the curriculum has rows for only "
            f"{available:,} steps: give fewer steps, or more tokens or epochs"
        )
    return settings.steps


def _scored(score: model.BitsPerByte) -> dict[str, float]:
    return {"bits_per_byte": score.value, "val_loss": score.loss}


def _losses(metrics: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The loss of each source over some steps, and its targets; nothing where there is but one."""
    if "source_nats" not in metrics[0]:
        return {}
    nats = np.sum([np.asarray(each["source_nats"], float) for each in metrics], axis=0)
    targets = np.sum([np.asarray(each["source_targets"], int) for each in metrics], axis=0)
    found = zip(names, nats.tolist(), targets.tolist(), strict=True)
    return {"losses": {name: {"loss": sum_ / n, "targets": n} for name, sum_, n in found if n}}


class Interrupts:
    """Delays Ctrl-C where state changes; the second one is never delayed.

    It acts in the main thread only, where Python handles signals.

    >>> with Interrupts() as interrupts, interrupts.delayed():
    ...     pass
    """

    def __init__(self) -> None:
        self._delays = self._asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._delays or self._asked:
            raise KeyboardInterrupt
        self._asked = True

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Within, the first Ctrl-C waits for the end of the block; raises KeyboardInterrupt."""
        self._delays = True
        try:
            yield
        finally:
            self._delays = False
        if self._asked:
            raise KeyboardInterrupt


class RunLog:
    """Append records to a file, after dropping a line that a kill cut short.

    Floats keep all their digits, so losses read back are equal to the bit. A record with `loss`
    belongs to step `step`, counted from 0; one with `bits_per_byte` or `event` to the moment after
    `step` steps.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self._file = path.open("a", encoding="utf-8")

    def write(self, *records: Mapping[str, Any]) -> None:
        """Append records and hand them to the operating system."""
        self._file.write("".join(json.dumps(record) + "\n" for record in records))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete records, oldest first; a step that was run twice appears twice."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def amendments_of(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The changes of weights that a run made while it went on, for the `amendments` of a config.

    What was asked for after the checkpoint that a later start resumed from counts no more.

    >>> start = {"event": "start", "step": 0}
    >>> log = [start, {"event": "reweigh", "row": 96, "weights": {"web": 1}, "asked_at": 80}]
    >>> amendments_of(log), amendments_of([*log, start])
    ([{'at_row': 96, 'mix': {'web': 1}}], [])
    """
    found: dict[int, Any] = {}
    for record in records:
        if record.get("event") == "start":
            held = [each for each in record.get("amendments", ()) if "asked_at" in each]
            found = {each["row"]: each["weights"] for each in held}
        elif record.get("event") == "reweigh":
            found[record["row"]] = record["weights"]
    return [{"at_row": row, "mix": found[row]} for row in sorted(found)]
