"""`convert` and `texts`: what a program calls, as jobs and files."""

import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from jaxdata import tokenizers
from jaxdata.base.numbers import Positive, validated
from jaxdata.converter.chat.formatting import check_template_text
from jaxdata.converter.conversion_run import Conversion
from jaxdata.converter.engines import EngineName, choose_engine
from jaxdata.converter.inputs import parsing
from jaxdata.converter.inputs.discovery import Inputs, TextSuffix, find_inputs
from jaxdata.converter.inputs.files import InputFile, ReadSettings
from jaxdata.converter.inputs.formats.tables import check_strings
from jaxdata.converter.inputs.given_records import files_of
from jaxdata.converter.inputs.reading import cut, raw_records, reader_of
from jaxdata.converter.parameters import check_name, make_parameters
from jaxdata.converter.statistics import ConversionReport
from jaxdata.converter.tasks.lm import LmSettings
from jaxdata.converter.worker import Job
from jaxdata.storage import open_store
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders.base import EncoderName
from jaxdata.tokenizers.encoders.choice import library_of

OnError = Literal["quarantine", "fail"]
_SHOWN = 8


@validated
def convert(
    inputs: Inputs | Iterable[Any] = (),
    *,
    output: str | os.PathLike[str],
    source: str,
    split: str = "train",
    tokenizer: str | Tokenizer,
    files_from: Sequence[str | Path] = (),
    text_suffix: TextSuffix = (),
    workers: Positive | None = None,
    engine: EngineName = "local",
    encoder: EncoderName = "auto",
    append: bool = False,
    on_error: OnError = "quarantine",
    template_text_ok: bool = False,
    progress: Callable[[int, int], None] | None = None,
    command: str | None = None,
    **options: Any,
) -> ConversionReport:
    """Convert files, or records, into one source of a dataset; an unfinished one is resumed.

    Args:
        inputs: files, folders or globs, or `gs://`, `s3://` and `https://` URLs of them, of .jsonl,
            .json, .csv, .tsv, .txt, .md, .rst, .html, .parquet and .arrow, all but the last two
            also compressed (.gz, .zst) or in .tar archives; or "-", standard input, JSON lines. A
            text file is one document, one of more than 64 MiB is read in pieces of 4 MiB. Or any
            iterable of records, which are texts or dicts as lines of JSON would give them
            (strings in a list are names of files): a Hugging Face `Dataset` or `IterableDataset`, a
            list of dicts, a generator; or the rows of a pandas `DataFrame` (without its index) or a
            `pyarrow.Table`. It is read once, here, and written to the output's disk, to be
            converted as that file of JSON lines would be; to resume, it has to give the same
            records again. Of a `DatasetDict` the split is taken that `split` names.
        output: the dataset, a folder or URL; created if absent.
        source: what the source is called in its split.
        split: "train", "val", …
        tokenizer: a spec as `tokenizers.load` takes it, or a loaded tokenizer.
        files_from: files or URLs that list more inputs, one per line.
        text_suffix: more suffixes of text files (".py,.rs"), each of which is a document.
        workers: worker processes; None for one per core. The dataset does not depend on it.
        engine: "local" for processes of this machine, "ray" for a cluster, whose nodes must all see
            inputs and output: the one that $RAY_ADDRESS names or this machine is in, or else one of
            this machine alone. The dataset does not depend on it.
        encoder: what encodes texts, always with the ids of the tokenizer's library: "library"
            itself, "fast" (`jaxdata[fast]`) or "words" where it can stand in, or "auto" for
            whichever can. The dataset does not depend on it.
        append: append the documents of new files to an existing source, as another generation.
            Running jobs keep using the documents they started with.
        on_error: "quarantine" sets records without a usable text aside in a file, "fail" stops at
            the first.
        template_text_ok: let a chat template, prefixes or a separator write what looks like a
            special token ("<|im_start|>") and is none of the tokenizer; else that is an error.
        progress: called with the bytes of input done, and their total.
        command: what `history.jsonl`, beside the manifest, says was run; None for this call. URLs
            are kept there without names, passwords and signatures.
        **options: task, cleaning, splits and limits: see :class:`Options`. `minhash=True` keeps
            hashes of each document's text in the index, with which `deduplicate` hashes none;
            `exact_hash="whitespace"` (or "letters", "none") keeps those of exact copies alone, for
            `jaxdata.deduplicate(output, "exact", exact="whitespace", near=False)` after it.

    Raises:
        InputError: there is nothing to convert, or it does not fit the dataset; the message says
            what to do.
        DatasetError: another process writes the same source, or the output cannot be written.
        WorkerDied: workers were killed repeatedly over the same unit. The same call resumes.

    >>> report = convert("corpus/", output="data/web", source="web",
    ...                  tokenizer="bytes")  # doctest: +SKIP
    >>> report = convert(({"text": page.body} for page in pages), output="data/web",
    ...                  source="pages", tokenizer="bytes")  # doctest: +SKIP
    """
    started, given = time.monotonic(), dict(locals())
    check_name("source", source)
    places_of = choose_engine(engine, workers)
    loaded = tokenizers.load(tokenizer) if isinstance(tokenizer, str) else tokenizer
    # What records that are texts become.
    usual = LmSettings(text_key=str(options.get("text_key", "text"))).text_keys
    first_key = getattr(options.get("task"), "text_keys", usual)[0]
    spooling: Any = {"text_key": first_key, "shared": engine != "local"}
    with files_of(inputs, output, files_from=files_from, split=split, **spooling) as (paths, ours):
        said = command or _call(given | options | {"inputs": paths})
        job = _job(paths, loaded, **given)
        asked: Any = {"encoder": encoder, "known_by_name": ours, "command": said}
        conversion = Conversion(job, job.task(loaded), loaded, **asked)
        made = conversion.complete(places_of, progress, append)
    return ConversionReport.of(job.url, job.folder, made, time.monotonic() - started)


def _job(paths: Any, tokenizer: Tokenizer, /, **given: Any) -> Job:
    """The job of a call of `convert` with these arguments, for files."""
    unread = Counter[str]()
    where = given["files_from"], given["output"], given["text_suffix"]
    files = find_inputs(paths, *where, unread)
    parameters = make_parameters(files, tokenizer, given["options"])
    library = library_of(tokenizer.kind) if parameters.task.has_texts else None
    parameters = parameters.model_copy(update={"library": library})
    parameters.check(given["split"])
    check_template_text(parameters.task, tokenizer, allowed=given["template_text_ok"])
    return Job(
        url=open_store(given["output"]).url,
        split=parameters.splits(given["split"])[0],
        source=given["source"],
        files=files,
        parameters=parameters,
        tokenizer_files=tokenizer.files(),
        stop_at_bad=given["on_error"] == "fail",
        unread=dict(sorted(unread.items())),
    )


def _call(arguments: Mapping[str, Any]) -> str:
    """The call of `convert` with some arguments, without those that are its defaults.

    >>> _call({"inputs": ["a"], "output": "b", "split": "train", "bos": True})
    "jaxdata.convert(['a'], output='b', bos=True)"
    """
    known = inspect.signature(convert).parameters
    said = [
        _shown(value) if name == "inputs" else f"{name}={_shown(value)}"
        for name, value in arguments.items()
        if name not in ("progress", "command", "options")
        and not (name in known and value == known[name].default)
    ]
    return f"jaxdata.convert({', '.join(said)})"


def _shown(value: Any) -> str:
    """A value in a call: of a long list the first ones, of what is no value its name or type."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value[:_SHOWN]))}{', …' * (len(value) > _SHOWN)}]"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str | int | float | bool | dict | None):
        return repr(value)
    name = getattr(value, "name", None) or getattr(value, "__qualname__", None)
    return repr(name) if isinstance(name, str) else f"<{type(value).__name__}>"


def texts(
    inputs: Inputs, text_key: str = "text", *, files_from: Sequence[str | Path] = ()
) -> Iterator[str]:
    """Give the text of every good record of a corpus, in order; bad records are skipped.

    The arguments are those of :func:`jaxdata.converter.convert`. A key that goes through a list of
    objects ("messages.content") means the texts of all of them, joined by an empty line.

    >>> for text in texts("corpus/*.jsonl.gz"):  # doctest: +SKIP
    ...     print(len(text))
    """
    keys = LmSettings(text_key=text_key).text_keys
    for _, _, text in texts_with_places(find_inputs(inputs, files_from), keys):
        yield text


def texts_with_places(
    files: Sequence[InputFile], keys: tuple[str, ...]
) -> Iterator[tuple[InputFile, int, str]]:
    """Give the text of every good record, with its file and its line (from 1) or row (from 0)."""
    for file in files:
        if reader_of(file.kind).table:
            check_strings(file, keys, through_lists=len(keys) == 1)
    # A key may go through a list, which a table has under the first name.
    settings = ReadSettings(tuple(dict.fromkeys((*keys, *(key.split(".")[0] for key in keys)))))
    numbers = [reader_of(file.kind).first_number for file in files]
    for part in (part for unit in cut(files, settings) for part in unit.parts):
        file = files[part.file]
        for number, raw in enumerate(raw_records(file, part, settings), numbers[part.file]):
            numbers[part.file] = number + 1
            with suppress(parsing.BadRecord):
                if record := parsing.parse(raw, keys[0], texts_only=True):
                    yield file, number, _text_of_keys(record, keys)


def _text_of_keys(record: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The texts of some keys, joined; of one that goes through a list, those of its objects."""
    if len(keys) == 1 and "." in keys[0]:
        found = parsing.texts_of(record, keys[0])
        return found if isinstance(found, str) else parsing.BETWEEN_TEXTS.join(found)
    return parsing.joined_text_of(record, keys)
