"""Metrics of steps for the log and the terminal, without holding up the devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxdata.train.digests import gather_digests
from jaxdata.train.log import RunLog


class Progress:
    """Collects the metrics of running steps, and writes them on `flush`.

    `wait_seconds()` is the time that the trainer has waited for data so far, `facts()` what the
    record of a line says in addition; `log` is None on processes that do not write.
    """

    def __init__(
        self,
        log: RunLog | None,
        say: Callable[[str], None],
        wait_seconds: Callable[[], float],
        steps: int,
        facts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._log, self._say, self._wait_seconds, self._steps = log, say, wait_seconds, steps
        self._facts = facts
        self._pending: list[tuple[int, Mapping[str, Any], np.ndarray | None]] = []
        self.restart_clock()

    def restart_clock(self) -> None:
        """Exclude time since the last flush that was no training: compiling, evaluating, saving."""
        self._started, self._waited = time.perf_counter(), self._wait_seconds()

    def add(self, step: int, metrics: Mapping[str, Any], rows: np.ndarray | None) -> None:
        """Record a started step, and the digests of its rows in this process."""
        self._pending.append((step, metrics, rows))

    def flush(self) -> None:
        """Wait for the recorded steps, write a record of each, and print the last one.

        All processes call it after the same steps, since it gathers row digests.
        """
        if not self._pending:
            return
        records = [_record(step, metrics) for step, metrics, _ in self._pending]
        digests = gather_digests([rows for _, _, rows in self._pending if rows is not None])
        for record, digest in zip(records, digests, strict=False):
            record["rows"] = digest
        self._pending.clear()
        records[-1] |= self._rates(sum(record["targets"] for record in records))
        self.record(*records)
        self._say(_line(records[-1], self._steps))
        self.restart_clock()

    def _rates(self, targets: int) -> dict[str, Any]:
        seconds = max(time.perf_counter() - self._started, 1e-9)
        waited = self._wait_seconds() - self._waited
        return {
            "tokens_per_second": targets / seconds,
            "wait_seconds": waited,
            "wait_share": waited / seconds,
            **self._facts(),
        }

    def record(self, *records: Mapping[str, Any]) -> None:
        if self._log:
            self._log.write(*records)


def _record(step: int, metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": step,
        "loss": float(metrics["loss"]),
        "gradient_norm": float(metrics["gradient_norm"]),
        "targets": int(metrics["targets"]),
    }


def _line(record: Mapping[str, Any], steps: int) -> str:
    return (
        f"step {record['step'] + 1:>{len(str(steps))}}/{steps}  loss {record['loss']:.4f}  "
        f"{record['tokens_per_second']:>9,.0f} tokens/s  "
        f"waited for data {100 * record['wait_share']:.1f} %"
    )
