"""The encoder of a conversion, and what becomes of those that gave other ids than the library."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from jaxdata.converter.job import Job
from jaxdata.dataset.history import redacted
from jaxdata.dataset.unfinished import UnfinishedJob
from jaxdata.storage import Store
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
            "\n".join(_of_earlier(tokenizer, differs.encoder)),
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


def _of_earlier(tokenizer: Tokenizer, encoder: str) -> Iterator[str]:
    """Lines that name what an encoder encoded before on this machine; none if there is nothing."""
    if found := [*encoded_by(tokenizer, encoder)]:
        yield f". Before, {encoder} encoded, perhaps with other ids than the library:"
        for one in found:
            yield f"  {', '.join(one.made)} of {one.dataset}: {one.command}"
        yield (
            "To check one, run its command with another --output and --encoder library: where "
            "`jaxdata inspect` shows another fingerprint, use the new one"
        )


def _place(store: Store) -> str:
    return str(Path(store.url).absolute()) if store.local else store.url
