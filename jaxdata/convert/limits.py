"""Documents that are too short or too long, by characters or tokens; no limit unless asked for."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from jaxdata.convert.tasks import Dropped, Encoded

__all__ = ["Limits"]


class Limits(BaseModel):
    """How long documents may be; a part of the parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_chars: int | None = None
    max_chars: int | None = None
    """Characters of a document's texts, cleaned."""
    min_tokens: int | None = None
    max_tokens: int | None = None
    """Tokens of a document as it is stored, EOD included."""

    def of_characters(self, count: int) -> Dropped | None:
        """Why a document of so many characters is left out; None where it is taken."""
        if self.min_chars is not None and count < self.min_chars:
            return Dropped(f"shorter than {self.min_chars:,} characters")
        if self.max_chars is not None and count > self.max_chars:
            return Dropped(f"longer than {self.max_chars:,} characters")
        return None

    def of_tokens(
        self, encoded: Sequence[tuple[Encoded, ...] | Dropped]
    ) -> Sequence[tuple[Encoded, ...] | Dropped]:
        """Documents as a task encodes them; `Dropped` in the place of those left out."""
        if self.min_tokens is None and self.max_tokens is None:
            return encoded
        return [one if isinstance(one, Dropped) else self._checked(one) for one in encoded]

    def _checked(self, streams: tuple[Encoded, ...]) -> tuple[Encoded, ...] | Dropped:
        """A document, each stream of which must be of a length that is taken."""
        lengths = [len(one.tokens) for one in streams]
        if self.min_tokens is not None and min(lengths) < self.min_tokens:
            return Dropped(f"shorter than {self.min_tokens:,} tokens")
        if self.max_tokens is not None and max(lengths) > self.max_tokens:
            return Dropped(f"longer than {self.max_tokens:,} tokens")
        return streams
