"""The settings of rows in Megatron's order, by Megatron's names where it has them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypedDict

from jaxdata.errors import InputError
from jaxdata.rows.table import MOST_SLOTS, POSITIONS

_ALWAYS = ("seq_len", "seed", "reset", "eod_mask_loss")  # in states since the first version
_OF_THE_STREAM = ("add_extra_token_to_sequence", "drop_last_partial_validation_sequence")


class GptArguments(TypedDict, total=False):
    """Fields of `GptSettings` that `gpt` and `blend` take in addition to `seq_len`."""

    seed: int
    reset: bool
    eod_mask_loss: bool
    by: str
    eod_id: int | None
    positions: str
    add_extra_token_to_sequence: int
    drop_last_partial_validation_sequence: bool
    pad_id: int | None


@dataclass(frozen=True)
class GptSettings:
    """How documents become samples; checked when made."""

    seq_len: int
    seed: int = 1234
    reset: bool = False
    """segments and positions restart with documents; otherwise a row is one segment"""
    eod_mask_loss: bool = False
    """no loss where the input is the last token of a document"""
    by: str = "document"
    """what ends a document: its length, or with "eod" each `eod_id`, and nothing else"""
    eod_id: int | None = None
    positions: str = "segment"
    """with `reset`: "row" lets them run along the row"""
    add_extra_token_to_sequence: int = 1
    """0: a sample has only `seq_len` tokens, and no target in its last slot"""
    drop_last_partial_validation_sequence: bool = True
    """False: the rest of the tokens is a row too, completed with padding"""
    pad_id: int | None = None
    """this id has no loss, and is 0 in rows"""

    def __post_init__(self) -> None:
        if not 1 <= self.seq_len <= MOST_SLOTS:
            raise InputError(f"seq_len={self.seq_len}: expected 1 to {MOST_SLOTS:,}")
        if not 0 <= self.seed < 2**32:
            raise InputError(
                f"seed={self.seed}: expected 0 to 2**32 - 1, as in numpy's RandomState"
            )
        if self.by not in ("document", "eod"):
            raise InputError(f"by={self.by!r}: expected document | eod")
        if (self.by == "eod") != (self.eod_id is not None):
            raise InputError(
                f"by={self.by!r}, eod_id={self.eod_id!r}: expected by='eod' and eod_id=, the id "
                "that ends documents (tokenizer.eod of Megatron, eod_id of a dataset), or neither"
            )
        if self.positions not in POSITIONS:
            raise InputError(f"positions={self.positions!r}: expected {' | '.join(POSITIONS)}")
        if self.add_extra_token_to_sequence not in (0, 1):
            raise InputError(
                f"add_extra_token_to_sequence={self.add_extra_token_to_sequence!r}: expected 0 or 1"
            )
        if self.pad_id is not None and self.pad_id < 0:
            raise InputError(
                f"pad_id={self.pad_id}: expected an id, tokenizer.pad of Megatron; where that is "
                "negative, or another special token too, Megatron masks nothing: leave pad_id out"
            )

    def facts(self) -> dict[str, Any]:
        """What determines the rows; settings that came later are left out at their defaults."""
        return {name: getattr(self, name) for name in _ALWAYS} | self._changed()

    def stream_facts(self) -> dict[str, Any]:
        """Those of them that determine which tokens each sample has, at other than defaults."""
        changed = self._changed()
        return {name: changed[name] for name in _OF_THE_STREAM if name in changed}

    def _changed(self) -> dict[str, Any]:
        later = {each.name: each.default for each in fields(self) if each.name not in _ALWAYS}
        given = {name: getattr(self, name) for name in later}
        return {name: _plain(value) for name, value in given.items() if value != later[name]}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | bool) else int(value)
