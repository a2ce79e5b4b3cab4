"""`convert` and `texts`: a whole conversion, what there is to do, and what was done before."""

from __future__ import annotations

import inspect
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.base.numbers import validated
from jaxdata.converter.changes import check_addition, check_dataset, check_finished
from jaxdata.converter.chat.formatting import check_template_text
from jaxdata.converter.conversion_run import ConversionRun
from jaxdata.converter.engines import EngineName, MakeEngine, choose_engine
from jaxdata.converter.inputs.discovery import Inputs, TextSuffix, find_inputs
from jaxdata.converter.inputs.files import InputFile, ReadSettings
from jaxdata.converter.inputs.formats.base import reader_of
from jaxdata.converter.inputs.formats.tables import check_strings
from jaxdata.converter.inputs.given_records import files_of
from jaxdata.converter.inputs.parsing import (
    BETWEEN_TEXTS,
    BadRecord,
    joined_text_of,
    parse,
    texts_of,
)
from jaxdata.converter.inputs.reading import cut, raw_records
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import Parameters, check_name, make_parameters
from jaxdata.converter.statistics import ConversionReport
from jaxdata.converter.tasks.lm import LmSettings
from jaxdata.dataset.lease import clear, leased
from jaxdata.dataset.manifest import SourceEntry
from jaxdata.storage import open_store
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders.base import EncoderName
from jaxdata.tokenizers.encoders.choice import EncodingSummary, check_encoder, library_of


@dataclass
class Conversion(ConversionRun):
    """A conversion: of all files, the rest, those that are new, or none, by what is there."""

    def complete(
        self,
        make_engine: MakeEngine,
        progress: Callable[[int, int], None] | None,
        append: bool,
    ) -> tuple[dict[str, SourceEntry], EncodingSummary | None]:
        """Return the sources, and what encoded them; convert or resume unless they are complete.

        What encoded them is None where they were complete before.

        `progress` is called with the bytes of input done, and their total. With `append` the files
        that are new are added.
        """
        folders = [self.job.folder, *self.outputs]
        now = self._now(append)
        finished = now._finished()
        if finished and not now._left_behind(finished):
            clear(self.store, folders)
            return finished, None
        encoding = None
        with self.job.unfinished.writing(), leased(self.store, folders) as lease:
            now = replace(self, job=replace(self.job, lease=lease))._now(append)
            finished = now._finished()  # another process may have been faster
            if not finished:
                finished, encoding = now.run(make_engine, progress)
            now.job.unfinished.end()
        return finished, encoding

    def _now(self, append: bool) -> Conversion:
        """The conversion of what is to be done as the dataset is now.

        With `append` it is that of the files that are new to the sources that are there.

        Raises:
            InputError: these have different settings, or a file of the same name.
        """
        manifest = self.manifest() if append else None
        known = manifest.sources if manifest else {}
        base = {name: known[name] for name in self.outputs if name in known}
        if not base:
            return self
        for name, entry in base.items():
            check_addition(name, entry, self.job.parameters)
        # All were made at the same times; one may have got no document of the last files.
        longest = max(base.values(), key=lambda entry: len(entry.inputs))
        new = _new_files(longest, self.job)
        inputs = {file.name: file.digest for file in new}
        update = {"inputs": inputs, "first_file": len(longest.inputs)}
        parameters = self.job.parameters.model_copy(update=update)
        return replace(self, job=replace(self.job, files=new, parameters=parameters), base=base)

    def _finished(self) -> dict[str, SourceEntry]:
        """Return the sources it made if it was finished before; rejects what cannot join."""
        manifest, parameters, url = self.manifest(), self.job.parameters, self.store.url
        if manifest is None:
            return {}
        if not self.base:
            found = {n: manifest.sources[n] for n in self.outputs if n in manifest.sources}
            for name in found:
                check_finished(manifest, name, parameters, url)
        else:
            found = {} if self.job.files else self.base
        check_dataset(manifest, parameters, url)
        return found

    def _left_behind(self, entries: dict[str, SourceEntry]) -> bool:
        """Tell whether a conversion that is part of these sources was killed before it cleaned up.

        What is being appended to them is not.
        """
        begun = self.job.unfinished.begun()
        if begun is None:
            return bool(self.job.unfinished.files())
        with suppress(ValueError):
            first = Parameters.model_validate_json(begun).first_file
            return first < max(len(entry.inputs) for entry in entries.values())
        return False


def _new_files(entry: SourceEntry, job: Job) -> list[InputFile]:
    """The files that are not among those of a source."""
    digests = entry.parameters["input_digests"]
    new = [file for file in job.files if file.digest not in digests]
    if same := next((file for file in new if file.name in entry.inputs), None):
        raise InputError(
            f"--append: {same.name!r} was converted before with other content, and appending it "
            "would repeat its documents. Give only new files, under new names: if two folders have "
            "files of the same names, give their parent folder, or rename the files"
        )
    return new


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
    workers: int | None = None,
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
        progress: called with the bytes of input done, and their total; before, where an encoder is
            tried, with the texts of the trial.
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
    check_encoder(encoder)
    if on_error not in get_args(OnError):
        raise InputError(f"on_error={on_error!r}; expected one of {get_args(OnError)}")
    make_engine = choose_engine(engine, workers)
    loaded = tokenizers.load(tokenizer) if isinstance(tokenizer, str) else tokenizer
    # What records that are texts become.
    first_key = str(options.get("text_key", "text")).split(",")[0].strip()
    spooling: Any = {"text_key": first_key, "shared": engine != "local"}
    with files_of(inputs, output, files_from=files_from, split=split, **spooling) as (paths, ours):
        said = command or _call(given | options | {"inputs": paths})
        job = _job(paths, loaded, **given)
        asked: Any = {"encoder": encoder, "known_by_name": ours, "command": said}
        conversion = Conversion(job, job.task(loaded), loaded, **asked)
        entries, encoding = conversion.complete(make_engine, progress, append)
    return ConversionReport.of(job.url, job.folder, entries, time.monotonic() - started, encoding)


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
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str | int | float | bool | dict | None):
        return repr(value)
    if isinstance(value, list | tuple):
        more = ["…"] if len(value) > _SHOWN else []
        return f"[{', '.join([*map(_shown, value[:_SHOWN]), *more])}]"
    name = getattr(value, "name", None) or getattr(value, "__qualname__", None)
    return repr(name) if isinstance(name, str) else f"<{type(value).__name__}>"


def texts(
    inputs: Inputs,
    text_key: str = "text",
    *,
    files_from: Sequence[str | Path] = (),
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
            check_strings(file, keys)
    settings = ReadSettings(keys)
    passed = [0 if reader_of(file.kind).table else 1 for file in files]
    for part in (part for unit in cut(list(files), settings) for part in unit.parts):
        file = files[part.file]
        for number, raw in enumerate(raw_records(file, part, settings), passed[part.file]):
            passed[part.file] = number + 1
            with suppress(BadRecord):
                if record := parse(raw, keys[0], texts_only=True):
                    yield file, number, _text_of_keys(record, keys)


def _text_of_keys(record: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """The texts of some keys, joined; of one that goes through a list, those of its objects."""
    if len(keys) == 1 and "." in keys[0]:
        found = texts_of(record, keys[0])
        return found if isinstance(found, str) else BETWEEN_TEXTS.join(found)
    return joined_text_of(record, keys)
