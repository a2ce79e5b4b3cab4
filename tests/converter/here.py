"""Conversions in this process, and what they read and wrote, with array_record and numpy alone."""

import hashlib
import json
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from jaxdata.converter import ConversionReport, convert
from jaxdata.converter.engines import Work, WorkerOf
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.parameters import make_parameters
from jaxdata.converter.tasks import Task
from jaxdata.converter.worker import Job
from jaxdata.dataset.lease import HISTORY
from jaxdata.storage import open_store
from jaxdata.tokenizers import load


class Here:
    """Does a unit at a time where it is called, as soon as it is started."""

    workers = 1

    def __init__(self, job: Work, worker_of: WorkerOf) -> None:
        self._work = worker_of(job)
        self._done: list[tuple[Any, Any]] = []

    def __len__(self) -> int:
        return len(self._done)

    def start(self, task: Any, key: Any) -> None:
        self._done.append((key, self._work(task)))

    def wait(self) -> list[tuple[Any, Any]]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        pass


def job_of(path: Path, **options: Any) -> tuple[Job, Task]:
    """What workers get of a conversion of some files by bytes, and the task."""
    tokenizer, files = load("bytes"), find_inputs(path)
    parameters = make_parameters(files, tokenizer, options)
    job = Job("", "train", "web", files, parameters, tokenizer.files(), False)
    return job, job.task(tokenizer)


def in_this_process() -> Any:
    """While it is entered, conversions are done here, without the second that a worker takes."""
    return mock.patch("jaxdata.converter.conversion.choose_engine", return_value=Here)


def convert_here(inputs: Any, **options: Any) -> ConversionReport:
    """As `jaxdata.convert`, in this process."""
    with in_this_process():
        return convert(inputs, **options)


def run(inputs: Any, output: Path, **options: Any) -> ConversionReport:
    """Convert to `web` by bytes; in worker processes where the options name workers."""
    if options.keys() & {"workers", "engine"}:
        return convert(inputs, output=output, **{"source": "web", "tokenizer": "bytes"} | options)
    return run_here(inputs, output, **options)


def run_here(inputs: Any, output: Path, **options: Any) -> ConversionReport:
    """As `run`, here whatever is given."""
    return convert_here(inputs, output=output, **{"source": "web", "tokenizer": "bytes"} | options)


def interrupted(inputs: Any, output: Path, units: float, **options: Any) -> list[Path]:
    """As `run_here`, until so many units are done; the receipts that there are then."""
    done = count()  # the first call says the total

    def stop(_done: int, _total: int) -> None:
        if next(done) >= units:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_here(inputs, output, progress=stop, **options)
    return receipts(output)


def receipts(output: Path) -> list[Path]:
    """Those of units that are done."""
    return sorted(output.glob("train/web/work/*.receipt"))


def write_lines(path: Path, lines: Iterable[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def objects(*fields: Any) -> list[bytes]:
    return [json.dumps(one).encode() for one in fields]


def records(*words: str) -> list[bytes]:
    return objects(*({"text": word} for word in words))


def manifest(output: Path) -> dict[str, Any]:
    return json.loads((output / "dataset.json").read_bytes())


def statistics(output: Path, source: str = "train/web") -> dict[str, Any]:
    return manifest(output)["sources"][source]["statistics"]


def documents(output: Path, source: str = "train/web") -> list[np.ndarray]:
    """Documents of a source, from its records and lengths."""
    fields = manifest(output)
    tokens = [np.empty(0, fields["dtype"])]
    for shard in fields["sources"][source]["shards"]:
        reader = ArrayRecordReader(str(output / shard["name"]))
        kind = "<" + np.dtype(fields["dtype"]).str[1:]
        tokens += [np.frombuffer(record, kind) for record in reader.read_all()]
    return np.split(np.concatenate(tokens), np.cumsum(column(output, "length", source))[:-1])


def column(output: Path, name: str, source: str = "train/web") -> np.ndarray:
    index = manifest(output)["sources"][source].get("index", "index")
    return open_store(output).read_array(f"{source}/{index}/{name}")


def decoded(output: Path, source: str = "train/web") -> list[str]:
    found = documents(output, source)
    assert all(document[-1] == 256 for document in found)
    return [bytes(document[:-1].astype(np.uint8)).decode() for document in found]


def quarantine(output: Path) -> list[dict[str, Any]]:
    lines = (output / "train/web/quarantine.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


def tree(folder: Path) -> dict[str, str]:
    """Name of each file -> the sha256 of it; but for the history, which says when it was made."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != HISTORY)
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def copy_tree(folder: Path, url: str) -> None:
    """Copy the files of a folder to a bucket, as any tool would."""
    store = open_store(url)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.write(path.relative_to(folder).as_posix(), path.read_bytes())
