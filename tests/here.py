"""Conversions in this process: whole ones, without the second that a worker takes to start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from jaxdata.convert import ConversionReport
from jaxdata.convert.engines import Engine
from jaxdata.convert.engines.base import Task
from jaxdata.convert.job import Job
from jaxdata.convert.work import UnitConverter
from tests.test_convert import run

__all__ = ["run_here"]


class Here(Engine):
    """Each unit is done before the next is taken."""

    def __init__(self, job: Job, progress: Callable[[int], None]) -> None:
        super().__init__(job, progress)
        self._converter = UnitConverter(job)

    def places(self) -> int:
        return 1

    def busy(self) -> int:
        return 0

    def start(self, task: Task) -> None:
        self.finish(task, self._converter.convert(task.unit, lambda _: None))

    def wait(self) -> None:
        raise AssertionError("nothing is under way")

    def close(self) -> None:
        pass


def run_here(inputs: Any, output: Path, **options: Any) -> ConversionReport:
    """As `run` of tests.test_convert."""
    with mock.patch("jaxdata.convert.run.choose_engine", return_value=Here):
        return run(inputs, output, **options)
