"""The encoder of a conversion, and what becomes of those that gave other ids than the library."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import TypeAdapter

from jaxdata.converter.job import Job
from jaxdata.dataset.unfinished import UnfinishedJob
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders import Choice, EncoderDiffers, EncoderName, choose, refuse

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
        refuse(job.tokenizer(), differs.encoder, f"it gave other ids on a text: {differs}")
        _log.warning(
            "%s. What it encoded in this conversion is encoded again by the library. Please report "
            "it with this text. `jaxdata inspect` says what encoded other datasets: convert those "
            "of %s again with --encoder library",
            differs,
            differs.encoder,
        )
        return Choice(reasons=(str(differs),))
