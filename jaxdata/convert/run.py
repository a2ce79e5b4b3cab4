"""The whole of a conversion, from what the user gives to what is reported."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Unpack, get_args

from jaxdata import tokenizers
from jaxdata.convert.conversion import Conversion
from jaxdata.convert.engines import EngineName, choose_engine
from jaxdata.convert.inputs import Inputs, find_inputs
from jaxdata.convert.job import Job
from jaxdata.convert.names import check_name
from jaxdata.convert.options import Options, make_parameters
from jaxdata.convert.report import ConversionReport
from jaxdata.convert.streams import EXPANSION
from jaxdata.errors import InputError
from jaxdata.format.storage import open_store
from jaxdata.tokenizers import Tokenizer

__all__ = ["OnError", "convert"]

OnError = Literal["quarantine", "fail"]


def convert(
    inputs: Inputs = (),
    *,
    output: str | os.PathLike[str],
    source: str,
    split: str = "train",
    tokenizer: str | Tokenizer,
    files_from: Sequence[str | Path] = (),
    workers: int | None = None,
    engine: EngineName = "local",
    ray_address: str | None = None,
    append: bool = False,
    resume: bool = False,
    on_error: OnError = "quarantine",
    max_expansion: int = EXPANSION,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[Options],
) -> ConversionReport:
    """Convert raw text into one source of a dataset; made or unfinished, it is gone on with.

    Args:
        inputs: files, folders or globs of .jsonl, .json, .txt, .parquet and .arrow, the first three
            also compressed (.gz, .zst) or in .tar archives; a text file is one document, one of
            more than 64 MiB in pieces (see `piece_bytes` of :class:`Options`).
        output: the dataset, a folder or URL; made where there is none.
        source: what the source is called in its split.
        split: "train", "val", …
        tokenizer: a spec as `tokenizers.load` takes it, or a loaded tokenizer.
        files_from: files that name more inputs, one a line.
        workers: processes; None for one a core. The dataset does not depend on it.
        engine: "local" for processes of this machine, "ray" for a cluster, whose nodes must all see
            inputs and output. Nor on this.
        ray_address: "host:port" of the cluster; None for the one that $RAY_ADDRESS names or this
            machine is in, or else one of this machine alone.
        append: add the documents of files that the source does not have yet, as another
            generation of it; what was there stays as it is, and a run goes on with what it knew.
        resume: go on with what was begun; where nothing was, raise InputError.
        on_error: "quarantine" sets records without a usable text aside in a file, "fail" stops at
            the first.
        max_expansion: refuse a compressed file that grows to more than so many times its size.
        progress: called with bytes of input done, and in all.
        **options: what becomes of the text: see :class:`Options`.

    Raises:
        InputError: there is nothing to convert, or it does not fit what the dataset has; the text
            says what to do.
        WorkerDied: workers were killed over the same unit, again and again. The same call goes on
            from there.

    >>> report = convert("corpus/", output="data/web", source="web",
    ...                  tokenizer="bytes")  # doctest: +SKIP
    """
    started = time.monotonic()
    check_name("source", source)
    if on_error not in get_args(OnError):
        raise InputError(f"on_error={on_error!r}; expected one of {get_args(OnError)}")
    make_engine = choose_engine(engine, workers, ray_address)
    loaded = tokenizers.load(tokenizer) if isinstance(tokenizer, str) else tokenizer
    files = find_inputs(inputs, files_from)
    parameters = make_parameters(files, loaded, options)
    parameters.check(split)
    job = Job(
        url=open_store(output).url,
        split=parameters.splits(split)[0],
        source=source,
        files=files,
        parameters=parameters,
        tokenizer_files=loaded.files(),
        stop_at_bad=on_error == "fail",
        max_expansion=max_expansion,
    )
    conversion = Conversion(open_store(output), job, job.task(loaded, job.cleaner()))
    conversion = conversion.adding() if append else conversion
    entries, already_complete = conversion.complete(make_engine, progress, resume=resume)
    seconds = time.monotonic() - started
    return ConversionReport.of(
        job.url, job.folder, entries, seconds, already_complete=already_complete
    )
