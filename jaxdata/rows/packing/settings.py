"""The settings of packing: the arguments of `pack`, checked."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from jaxdata.base.errors import InputError, either
from jaxdata.base.settings import Count, Natural, Settings, registered, setting
from jaxdata.rows.packing.block_plan import StrategyName
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.table import MOST_SLOTS, POSITIONS

Slots = Annotated[Count, Field(le=MOST_SLOTS)]
"""of a row"""
PositionsName = Literal["row", "segment"]
AnyStrategy = Annotated[StrategyName, registered(STRATEGIES, StrategyName)]
AnyPositions = Annotated[PositionsName, registered(POSITIONS, PositionsName)]
"""Type checkers know those that there are; more may be registered."""
ReshuffleName = Literal["rows", "documents"]
"""What an epoch shuffles."""


class PackSection(Settings):
    """How documents become rows; the arguments of `jaxdata.pack`."""

    seq_len: Slots = Field(default=2048, description="slots in a row")
    strategy: AnyStrategy = Field(default="best_fit", description="how windows share rows")
    overlap: Natural = Field(default=0, description="tokens that a window repeats, without loss")
    positions: AnyPositions = setting("segment", "where positions start again at 0", advanced=True)
    max_segments: Count | None = setting(None, "most segments in a row; null: any", advanced=True)
    reshuffle: ReshuffleName = Field(
        default="rows",
        description="what each epoch shuffles: rows, the same in another order; documents, which "
        "are dealt and packed anew",
    )
    multiple: Count = setting(
        1,
        "each segment takes a multiple of so many slots, the rest of them padding: twice the parts "
        "of context parallelism by document",
        advanced=True,
    )
    chunk_bytes: Natural | None = setting(
        None,
        "bytes of neighbouring documents that stay together; 0: single documents; "
        "null: 0 for sources below 2 GiB, else 1 MiB",
        advanced=True,
    )
    block_bytes: Count | None = setting(
        None,
        "bytes of documents that are packed together; null: 8 MiB of chunks, or 65,536 "
        "single documents",
        advanced=True,
    )
    lanes: Annotated[Count, Field(le=2**16)] | None = setting(
        None,
        "parts of an epoch that are read side by side, a power of two; null: by size",
        advanced=True,
    )


_LATER = {"reshuffle": "rows", "multiple": 1}
"""Facts of states, and keys of plans, do not change by a new setting that is not used."""


class PackSettings(PackSection):
    """All that decides the rows of one source."""

    seq_len: Slots
    seed: int = 0
    shuffle: bool = True
    """False: the order of the dataset"""

    def facts(self) -> dict[str, Any]:
        """Names and values; of settings that came later, only what is not the default."""
        facts = self.model_dump()
        for name, default in _LATER.items():
            if facts[name] == default:
                del facts[name]
        return facts

    @model_validator(mode="after")
    def _fit_together(self) -> "PackSettings":
        half = self.seq_len // 2
        if self.overlap > half:
            raise InputError(f"overlap={self.overlap!r}: expected 0 to seq_len/2 = {half}")
        if self.overlap and not STRATEGIES[self.strategy].takes_overlap:
            able = either(sorted(n for n, each in STRATEGIES.items() if each.takes_overlap))
            raise InputError(
                f"overlap={self.overlap} with strategy={self.strategy!r}: {self.strategy} cuts no "
                f"windows that could overlap; use overlap=0, or strategy {able}"
            )
        if self.seq_len % self.multiple:
            raise InputError(
                f"multiple={self.multiple} with seq_len={self.seq_len}: expected a seq_len that is "
                f"a multiple of it, such as {-(-self.seq_len // self.multiple) * self.multiple}"
            )
        if self.lanes is not None and self.lanes & (self.lanes - 1):
            raise InputError(f"lanes={self.lanes}: expected a power of two")
        return self
