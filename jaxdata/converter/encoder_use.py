"""The encoder of a conversion, and what becomes of those that gave other ids than the library."""

from __future__ import annotations

import ast
import json
import logging
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from jaxdata.base.errors import DatasetError
from jaxdata.converter.job import Job
from jaxdata.dataset.history import maker_of, read_history, redacted
from jaxdata.dataset.manifest import MANIFEST, SourceEntry, read_manifest
from jaxdata.dataset.unfinished import UnfinishedJob
from jaxdata.storage import Store, open_store
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders import (
    Choice,
    EncodedDataset,
    EncoderDiffers,
    EncoderName,
    EncodingSummary,
    choose,
    encoded_by,
    note_encoded,
    refuse,
)

_DISTRUSTED = "distrusted.json"
_NAMES: TypeAdapter[frozenset[str]] = TypeAdapter(frozenset[str])
_log = logging.getLogger("jaxdata")


@dataclass(frozen=True)
class EncoderUse:
    """Chooses the encoder of a job; remembers in `work/` which ones gave other ids."""

    unfinished: UnfinishedJob
    asked: EncoderName

    @property
    def distrusted(self) -> frozenset[str]:
        """Encoders whose units have to be done again, as "fastokens 0.3.5"."""
        return _NAMES.validate_json(self.unfinished.noted(_DISTRUSTED) or b"[]")

    def choose(
        self, job: Job, tokenizer: Tokenizer, progress: Callable[[int, int], None] | None
    ) -> Choice:
        """Choose an encoder; raises InputError where the one that is asked for cannot be had.

        `progress` is called with the texts of a trial that are done, and their total.
        """
        if not job.parameters.task.has_texts:
            return Choice(reasons=("there are no texts",))
        size = sum(file.text_bytes for file in job.files)
        without = self.distrusted
        return choose(tokenizer, self.asked, text_bytes=size, without=without, progress=progress)

    def distrust(self, job: Job, differs: EncoderDiffers) -> Choice:
        """Give up an encoder, for this conversion and others; returns what takes its place."""
        names = sorted(self.distrusted | {differs.encoder})
        self.unfinished.note(_DISTRUSTED, json.dumps(names).encode())  # before units are done anew
        tokenizer = job.tokenizer()
        refuse(tokenizer, differs.encoder, f"it gave other ids on a text: {differs}")
        _log.warning(
            "%s. What it encoded in this conversion is encoded again by the library. Please report "
            "it with this text%s",
            differs,
            "\n".join(_of_earlier(tokenizer, differs.encoder, self.unfinished.store)),
        )
        return Choice(reasons=(str(differs),))


def note_encoders(
    store: Store,
    tokenizer: Tokenizer,
    encoding: EncodingSummary,
    made: Mapping[str, str],
    command: str,
) -> None:
    """Remember on this machine which encoders took part in a conversion."""
    with suppress(OSError):  # the folder that it runs in may be gone
        here, said = str(Path.cwd()), redacted(command)
        what = EncodedDataset(dataset=_place(store), made={**made}, command=said, folder=here)
        for name in filter(None, encoding.counts):
            note_encoded(tokenizer, name, what)


def _of_earlier(tokenizer: Tokenizer, encoder: str, own: Store) -> Iterator[str]:
    """Lines that name what an encoder encoded before; none if there is nothing."""
    known: defaultdict[str, list[EncodedDataset]] = defaultdict(list, {_place(own): []})
    for one in encoded_by(tokenizer, encoder):
        known[one.dataset].append(one)
    found = [
        line for place, some in known.items() for line in _Earlier(encoder, place, some).lines()
    ]
    if found:
        yield f". Before, {encoder} encoded, perhaps with other ids than the library:"
        yield from found
        yield (
            "Each command converts again by the library, into another folder, and prints the "
            "fingerprint of what is there if that has the library's ids. If it prints none, use "
            "the other folder"
        )


@dataclass(frozen=True)
class _Earlier:
    """What an encoder encoded of one dataset, as its history and the cache of this machine say."""

    encoder: str
    place: str
    known: Sequence[EncodedDataset]

    def lines(self) -> Iterator[str]:
        """A line for each source, and the command that checks it."""
        store = open_store(self.place)
        try:
            there = store.read(MANIFEST) is not None
            sources = read_manifest(store).sources if there else {}
            history = read_history(store)
        except (DatasetError, OSError, ValueError) as error:
            yield f"  {self.place}, which cannot be read now ({error})"
            return
        if self.known and not there:
            names = ", ".join(sorted({name for one in self.known for name in one.made}))
            yield f"  {names} of {self.place}, which is not there any more: was it moved?"
        for name, entry in sources.items():
            yield from self._lines_of(name, entry, history)

    def _lines_of(
        self, name: str, entry: SourceEntry, history: Sequence[Mapping[str, Any]]
    ) -> Iterator[str]:
        stages = [*entry.generations, entry.as_generation()]
        makers = [maker_of(history, name, stage.fingerprint) for stage in stages]
        doubtful = [n for n, one in enumerate(makers) if self.encoder in _encoders_of(one)]
        if not doubtful:
            return
        which = f"generation {', '.join(map(str, doubtful))} of {len(stages)}"
        yield f"  {name} of {self.place}{f', {which}' if len(stages) > 1 else ''}:"
        if None in makers:
            yield "    convert its inputs again with --encoder library: its history lacks a command"
            return
        again = f"{self.place}-by-library"
        commands = [self._again(str(one["command"]), again) for one in makers if one]
        looks = shlex.join(["jaxdata", "inspect", again, "--json"])
        yield (
            "    "
            + " && ".join([*dict.fromkeys(commands), looks])
            + (f" | grep {stages[-1].fingerprint}")
        )

    def _again(self, command: str, output: str) -> str:
        """A command as it was run, but by the library and to another output."""
        words = _other_call(command, output) or _other_words(command, output)
        folder = next((one.folder for one in self.known if one.command == command), None)
        return f"cd {shlex.quote(folder)} && {words}" if folder else words


def _encoders_of(conversion: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What encoded in a conversion, by name; nothing where that is not known."""
    with suppress(ValueError):
        return EncodingSummary.model_validate((conversion or {}).get("encoding")).counts
    return {}


def _other_words(command: str, output: str) -> str:
    words = [word for word in shlex.split(command) if word != "--resume"]
    return shlex.join([*words, "--output", output, "--encoder", "library"])


def _other_call(command: str, output: str) -> str | None:
    """A call of Python as a command of the shell; None of what is none."""
    try:
        call = ast.parse(command, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call):
        return None
    changed = {"output": ast.Constant(output), "encoder": ast.Constant("library")}
    kept = [word for word in call.keywords if word.arg not in {*changed, "resume"}]
    call.keywords = [*kept, *(ast.keyword(arg=name, value=to) for name, to in changed.items())]
    return shlex.join(["python", "-c", f"import jaxdata; {ast.unparse(call)}"])


def _place(store: Store) -> str:
    return str(Path(store.url).absolute()) if store.local else store.url
