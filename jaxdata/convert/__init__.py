"""Raw text to an indexed dataset, once.

A conversion is cut into units of work; each writes a shard and then, as its commit, a receipt.
From the receipts of all units come the index and, last, the manifest's entry. So a conversion that
was killed goes on where it stopped, and its bytes depend neither on that nor on the workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from jaxdata import tokenizers
from jaxdata.convert.clean import Cleaning
from jaxdata.convert.conversion import Conversion
from jaxdata.convert.documents import texts
from jaxdata.convert.engines import EngineName, choose_engine
from jaxdata.convert.inputs import Inputs, find_inputs
from jaxdata.convert.job import Job
from jaxdata.convert.limits import Limits
from jaxdata.convert.names import check_name
from jaxdata.convert.parameters import Parameters, digests, tokenizer_entry
from jaxdata.convert.parts import RECORD_BYTES
from jaxdata.convert.report import ConversionReport
from jaxdata.convert.streams import EXPANSION
from jaxdata.convert.tasks import LmSettings, TaskSettings
from jaxdata.convert.transform import transform_digest, transform_name
from jaxdata.convert.units import UNIT_BYTES
from jaxdata.errors import InputError
from jaxdata.format.storage import open_store
from jaxdata.tokenizers import Tokenizer

__all__ = ["ConversionReport", "convert", "texts"]

Normal = Literal["NFC", "NFD", "NFKC", "NFKD"]
OnError = Literal["quarantine", "fail"]


def convert(
    inputs: Inputs = (),
    *,
    output: str | os.PathLike[str],
    source: str,
    split: str = "train",
    tokenizer: str | Tokenizer,
    task: TaskSettings | None = None,
    text_key: str = "text",
    text_joiner: str = "\n\n",
    files_from: Sequence[str | Path] = (),
    transform: str | Callable[[Any], Any] | None = None,
    keep: Sequence[str] = (),
    ftfy: bool = False,
    normalize: Normal | None = None,
    wikitext: bool = False,
    min_chars: int | None = None,
    max_chars: int | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
    split_ratio: str | None = None,
    split_by: str | None = None,
    split_contiguous: bool = False,
    workers: int | None = None,
    engine: EngineName = "local",
    ray_address: str | None = None,
    resume: bool = False,
    on_error: OnError = "quarantine",
    bos: bool = False,
    record_tokens: int = 16_384,
    unit_bytes: int = UNIT_BYTES,
    max_record_bytes: int = RECORD_BYTES,
    max_expansion: int = EXPANSION,
    progress: Callable[[int, int], None] | None = None,
) -> ConversionReport:
    """Convert raw text into one source of a dataset; made or unfinished, it is gone on with.

    Args:
        inputs: files, folders or globs of .jsonl, .json, .txt, .parquet and .arrow, the first three
            also compressed (.gz, .zst) or in .tar archives; a text file is one document.
        output: the dataset, a folder or URL; made where there is none.
        source: what the source is called in its split.
        split: "train", "val", …
        tokenizer: a spec as `tokenizers.load` takes it, or a loaded tokenizer.
        task: what records become; None for plain text, with the text key and `bos`.
        text_key: the key of each JSON object, or the column of tables, that holds the text; a
            dotted one goes into objects, several have commas between.
        text_joiner: what stands between the texts of several keys.
        files_from: files that name more inputs, one a line.
        transform: "module:function", from a record to a record, a list of records, or None; the
            module is imported in each worker.
        keep: keys whose values are kept in the index: `docs.kept(i)`.
        ftfy: mend wrongly decoded text (extra `clean`).
        normalize: a Unicode normal form, "NFC", "NFKC", …
        wikitext: undo the tokenisation of the WikiText corpora.
        min_chars: drop documents of fewer characters, cleaned.
        max_chars: drop documents of more.
        min_tokens: drop documents of fewer tokens, EOD included.
        max_tokens: drop documents of more.
        split_ratio: "train=98,val=1,test=1": deal documents to splits by a hash of each.
        split_by: the key by whose value they are dealt instead.
        split_contiguous: cut them into splits by position instead, as Megatron does.
        workers: processes; None for one a core. The dataset does not depend on it.
        engine: "local" for processes of this machine, "ray" for a cluster, whose nodes must all see
            inputs and output. Nor on this.
        ray_address: "host:port" of the cluster; None for the one that $RAY_ADDRESS names or this
            machine is in, or else one of this machine alone.
        resume: go on with what was begun; where nothing was, raise InputError.
        on_error: "quarantine" sets records without a usable text aside in a file, "fail" stops at
            the first.
        bos: begin each document with the tokenizer's begin-of-sequence token.
        record_tokens: longest record; longer documents lie in several.
        unit_bytes: text a unit of work holds, about.
        max_record_bytes: longer lines, text files and values are set aside.
        max_expansion: refuse a compressed file that grows to more than so many times its size.
        progress: called with bytes of input done, and in all.

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
    _check_options(on_error, record_tokens)
    make_engine = choose_engine(engine, workers, ray_address)
    loaded = tokenizers.load(tokenizer) if isinstance(tokenizer, str) else tokenizer
    files = find_inputs(inputs, files_from)
    parameters = Parameters(
        task=task or LmSettings(text_key=text_key, text_joiner=text_joiner, bos=bos),
        record_tokens=record_tokens,
        unit_bytes=unit_bytes,
        cleaning=Cleaning(ftfy=ftfy, normalize=normalize, wikitext=wikitext),
        limits=Limits(
            min_chars=min_chars, max_chars=max_chars, min_tokens=min_tokens, max_tokens=max_tokens
        ),
        transform=transform_name(transform),
        transform_digest=transform_digest(transform),
        keep=tuple(keep),
        split_ratio=split_ratio,
        split_by=split_by,
        split_contiguous=split_contiguous,
        max_record_bytes=max_record_bytes,
        tokenizer=tokenizer_entry(loaded),
        inputs=digests(files),
    )
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
    conversion = Conversion(open_store(output), job, job.task())
    entries, already_complete = conversion.complete(make_engine, progress, resume=resume)
    seconds = time.monotonic() - started
    return ConversionReport.of(
        job.url, job.folder, entries, seconds, already_complete=already_complete
    )


def _check_options(on_error: str, record_tokens: int) -> None:
    if on_error not in get_args(OnError):
        raise InputError(f"on_error={on_error!r}; expected one of {get_args(OnError)}")
    if record_tokens < 1:
        raise InputError(f"record_tokens={record_tokens}; expected 1 or more")
