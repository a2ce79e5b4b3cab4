"""Conversions in this process: whole ones, without the second that a worker takes to start."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from jaxdata.converter import ConversionReport, convert
from jaxdata.converter.engines import Engine
from jaxdata.converter.engines.base import Attempt, Work


class Here(Engine):
    """Each unit is done before the next is taken."""

    def __init__(self, job: Work, progress: Callable[[int], None]) -> None:
        super().__init__(job, progress)
        self._worker = import_module(job.worker).worker_of(job)

    def places(self) -> int:
        return 1

    def busy(self) -> int:
        return 0

    def start(self, task: Attempt) -> None:
        self.finish(task, self._worker(task.unit, lambda _: None))

    def wait(self) -> None:
        raise AssertionError("nothing is under way")

    def close(self) -> None:
        pass


def in_this_process() -> Any:
    """While it is entered, conversions are done here."""
    return mock.patch("jaxdata.converter.api.choose_engine", return_value=Here)


def convert_here(inputs: Any, **options: Any) -> ConversionReport:
    """As `jaxdata.convert`, in this process."""
    with in_this_process():
        return convert(inputs, **options)


def run(inputs: Any, output: Path, **options: Any) -> ConversionReport:
    """Convert to `web` by bytes; in worker processes where the options name workers."""
    if options.keys() & {"workers", "engine", "ray_address"}:
        return convert(inputs, output=output, **{"source": "web", "tokenizer": "bytes"} | options)
    return run_here(inputs, output, **options)


def run_here(inputs: Any, output: Path, **options: Any) -> ConversionReport:
    """As `run`, here whatever is given."""
    return convert_here(inputs, output=output, **{"source": "web", "tokenizer": "bytes"} | options)
