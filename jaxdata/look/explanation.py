"""The answers of `jaxdata trace` as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxdata.documents.dataset import Dataset
from jaxdata.errors import InputError
from jaxdata.feed.loader import Loader
from jaxdata.look.search import find_text, locate_text
from jaxdata.look.trace import Tracer
from jaxdata.progress import progress_bar
from jaxdata.views.fates import described_fate

_CONTEXT = 12  # tokens shown before a match


class Explanation:
    """Explains the rows of a loader; `resumed` if the loader was set to the state of the run."""

    def __init__(self, loader: Loader, dataset: Dataset, *, resumed: bool) -> None:
        self._loader, self._dataset = loader, dataset
        self.next_row = loader.next_row if resumed else None
        self._decode = decoder(dataset)
        self._tracer = Tracer(loader, self._decode)

    def batch(self, step: int | None, row: int | None) -> dict[str, Any]:
        """The segments of a batch (None: of the next one), or of one of its rows."""
        step = self._loader.step if step is None else step
        rows = self._tracer.batch(step).tolist()
        if row is not None and row >= len(rows):
            raise InputError(f"the batch of step {step} has rows 0 to {len(rows) - 1}")
        chosen = rows if row is None else [rows[row]]
        pieces = [piece.as_dict() for piece in self._tracer.rows(chosen)]
        return {"step": step, "seq_len": self._tracer.seq_len(rows[0]), "pieces": pieces}

    def holding(self, text: str) -> list[tuple[str, int]]:
        """(source, document) of all documents that contain a text."""
        if self._decode is None:
            self._dataset.tokenizer  # noqa: B018 - raises the error that says what is missing
        sources = {name: self._tracer.documents(name) for name in self._tracer.names}
        with progress_bar("searching documents") as progress:
            return find_text(self._dataset, sources, text, progress)

    def documents(
        self, chosen: Sequence[tuple[str, int]], text: str | None, limit: int
    ) -> dict[str, Any]:
        """Where documents come from, and which steps train them."""
        described = [
            self._document(self._tracer.named(source), document, text)
            for source, document in chosen[:limit]
        ]
        return {"found": len(chosen), "documents": described}

    def _document(self, source: str, document: int, text: str | None) -> dict[str, Any]:
        match, start = None, 0
        if text is not None and self._decode is not None:
            length = self._tracer.passage(source, document).length
            whole = self._tracer.tokens(source, document, 0, length)
            match = locate_text(self._decode, whole, text)
            start = max(match[0] - _CONTEXT, 0)
        passage = self._tracer.passage(source, document, start)
        pieces = [piece.as_dict() for piece in self._tracer.pieces(source, document)]
        for piece in pieces:
            del piece["source"], piece["document"], piece["length"]
            if match is not None:
                first, stop = piece["tokens"]
                piece["holds_match"] = first < match[1] and match[0] < stop
            if self.next_row is not None:
                piece["trained"] = piece["step"] is not None and piece["row"] < self.next_row
        view = described_fate(self._tracer.read(source), document)
        return {**passage.as_dict(), "match": match, "pieces": pieces, **view}


def decoder(dataset: Dataset) -> Any:
    """The function that decodes tokens; None if no tokenizer is known."""
    try:
        return dataset.tokenizer and dataset.decode
    except InputError:  # another tool's dataset, without a tokenizer
        return None
