"""How documents become rows, and what an epoch of them amounts to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxdata.errors import InputError
from jaxdata.rows.packing import STRATEGIES
from jaxdata.rows.table import POSITIONS

__all__ = ["PackSettings", "PackSummary"]


@dataclass(frozen=True)
class PackSettings:
    """How documents become rows; checked when made."""

    seq_len: int
    strategy: str = "best_fit"
    overlap: int = 0
    seed: int = 0
    positions: str = "segment"
    max_segments: int | None = None
    block: int = 65_536
    shuffle_run: int = 1
    shuffle: bool = True
    """False: documents and rows in the order of the dataset, for evaluation."""

    def __post_init__(self) -> None:
        _require(self.seq_len >= 1, "seq_len", self.seq_len, "at least 1")
        _require(self.strategy in STRATEGIES, "strategy", self.strategy, " | ".join(STRATEGIES))
        half = self.seq_len // 2
        _require(0 <= self.overlap <= half, "overlap", self.overlap, f"0 to seq_len/2 = {half}")
        _require(self.positions in POSITIONS, "positions", self.positions, " | ".join(POSITIONS))
        most = self.max_segments
        _require(most is None or most >= 1, "max_segments", most, "at least 1, or None")
        _require(self.block >= 1, "block", self.block, "at least 1 document")
        run = self.shuffle_run
        _require(run >= 1, "shuffle_run", run, "at least 1 document")
        if self.overlap and self.strategy in ("concat", "crop"):
            raise InputError(
                f"overlap={self.overlap} with strategy={self.strategy!r}: {self.strategy} cuts no "
                "windows that could overlap; use overlap=0, or strategy 'best_fit' or 'pad'"
            )


def _require(holds: bool, name: str, given: Any, expected: str) -> None:
    if not holds:
        raise InputError(f"{name}={given!r}: expected {expected}")


@dataclass(frozen=True)
class PackSummary:
    """What one epoch of packed rows amounts to; in slots (= tokens) unless said.

    `slots = trained_tokens + overlap_tokens + boundary_tokens + padding`.
    """

    documents: int
    rows: int
    slots: int
    trained_tokens: int
    """targets with loss, stored masks not counted"""
    overlap_tokens: int
    """slots repeated from the window before, without loss"""
    boundary_tokens: int
    """last tokens of documents as inputs, which have no target (`concat`)"""
    padding: int
    dropped_tokens: int
    """targets that no row holds (`crop`)"""

    @property
    def fill(self) -> float:
        """Share of slots that are not padding."""
        return 1 - self.padding / self.slots if self.slots else 1.0
