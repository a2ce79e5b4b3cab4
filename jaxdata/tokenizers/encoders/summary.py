"""What a conversion says of the encoders that it used, and how sure it is of their ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel, ConfigDict

from jaxdata.tokenizers.encoders.guarded import PASSAGE

_DOUBT = 3
"""Where n drawn texts or passages are equal, fewer than 3 / n of all such differ, with 95 %
confidence."""

_TIMED = 10_000  # microseconds of the library: less says nothing of its speed


class EncodingSummary(BaseModel):
    """What encoded the texts of a conversion.

    Attributes:
        library: the library that decides the ids, "tokenizers 0.23.3, Unicode 16.0"; None for
            our own tokenizers.
        counts: for each encoder ("fastokens 0.3.5"; "" for the library) what
            :class:`~jaxdata.tokenizers.encoders.GuardedEncoder` counted.
        reasons: why faster encoders were not used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    library: str | None
    counts: Mapping[str, Mapping[str, int]] = {}
    reasons: tuple[str, ...] = ()

    @property
    def remarkable(self) -> bool:
        """Whether there is more to say than that the library encoded, which needs no words."""
        return bool(self.reasons or any(self.counts))

    @property
    def encoder(self) -> str:
        """What encoded the most text."""
        most = max(self.counts, key=lambda name: self._count(name, "own characters"), default="")
        return most or self.library or ""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the library the encoder was; None without an encoder.

        By processor time, of the library on the texts that both encoded.
        """
        return self._ratio(self.encoder)

    def _ratio(self, name: str) -> float | None:
        speeds = [
            self._count(name, f"{what} characters")
            / max(1, self._count(name, f"{what} microseconds"))
            for what in ("own", "both")
        ]
        return speeds[0] / speeds[1] if all(speeds) else None

    def _count(self, name: str, what: str) -> int:
        return self.counts.get(name, {}).get(what, 0)

    def lines(self) -> Iterator[str]:
        """Lines for people; none where no library decides the ids."""
        if self.library is None:
            return
        for name in sorted(filter(None, self.counts)):
            yield self._line(name)
        if "" in self.counts or not self.counts:
            why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
            yield f"encoded by {self.library}{why}"

    def _line(self, name: str) -> str:
        texts, both, left = (self._count(name, f"{what} texts") for what in ("all", "both", "left"))
        ratio, timed = self._ratio(name), self._count(name, "both microseconds") >= _TIMED
        speed = f", {ratio:,.1f} times as fast as {self.library}" if ratio and timed else ""
        cut = self._count(name, "cut texts")
        parts, what = (
            (f", {cut:,} of them by {PASSAGE:,} of their characters", " of what is compared so")
            if cut
            else ("", "")
        )
        sure = f": with 95 % confidence fewer than 1 in {both // _DOUBT:,}{what} differ"
        every = both + left >= texts and not cut
        bound = sure if both >= 100 * _DOUBT and not every else ""
        rest = f"; {left:,} left to the library" if left else ""
        compared = f"{both:,} of {texts:,} texts compared{parts}, all equal{bound}"
        return f"encoded by {name}{speed}; {compared}{rest}"
