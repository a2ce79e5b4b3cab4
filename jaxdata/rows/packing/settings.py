"""The settings of packing, and the totals of an epoch of packed rows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, Literal, TypedDict, TypeVar

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import is_whole
from jaxdata.base.wording import bars_html, color_of, table_html
from jaxdata.rows.packing.block_plan import StrategyName
from jaxdata.rows.packing.strategies import STRATEGIES, strategy_names
from jaxdata.rows.table import MOST_SLOTS, POSITIONS

ORDERING = ("chunk_bytes", "block_bytes", "lanes")
"""settings that only shuffled rows have"""
PositionsName = Literal["segment", "row"]
"""for type checkers: `POSITIONS`"""
F = TypeVar("F", bound=Callable[..., Any])


def _setting(
    description: str,
    default: Any = MISSING,
    *,
    least: int | None = None,
    most: int = 2**62,
    choices: Collection[Any] | None = None,
) -> Any:
    """A field with the metadata from which checks and config sections are made.

    A registry given as `choices` is read whenever a value is checked.
    """
    metadata = {"description": description, "least": least, "most": most, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class PackSettings:
    """How documents become rows; checked when made.

    The arguments of `jaxdata.pack` and the fields of `pack:` in a config are these fields.
    """

    seq_len: int = _setting("slots in a row", least=1, most=MOST_SLOTS)
    strategy: StrategyName = _setting(  # noqa: RUF009 - a field
        "how windows share rows", "best_fit", choices=STRATEGIES
    )
    overlap: int = _setting("tokens that a window repeats, without loss", 0, least=0)
    seed: int = _setting("root of every order", 0)
    positions: PositionsName = _setting(  # noqa: RUF009 - a field
        "where positions start again at 0", "segment", choices=POSITIONS
    )
    max_segments: int | None = _setting("most segments in a row; null: any", None, least=1)
    chunk_bytes: int | None = _setting(
        "bytes of neighbouring documents that stay together; 0: single documents; null: 0 for "
        "sources below 2 GiB, else 1 MiB",
        None,
        least=0,
    )
    block_bytes: int | None = _setting(
        "bytes of documents that are packed together; null: 8 MiB of chunks, or 65,536 single "
        "documents",
        None,
        least=1,
    )
    lanes: int | None = _setting(
        "parts of an epoch that are read side by side, a power of two; null: by size",
        None,
        least=1,
        most=2**16,
    )
    shuffle: bool = _setting("shuffle documents and rows; False: the order of the dataset", True)

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each, getattr(self, each.name))
        self._check_overlap()
        if self.lanes is not None and self.lanes & (self.lanes - 1):
            raise InputError(f"lanes={self.lanes}: expected a power of two, or None")

    def facts(self) -> dict[str, Any]:
        """Names and values."""
        return asdict(self)

    def _check_overlap(self) -> None:
        half = self.seq_len // 2
        if not self.overlap <= half:
            raise InputError(f"overlap={self.overlap!r}: expected 0 to seq_len/2 = {half}")
        if self.overlap and not STRATEGIES[self.strategy].takes_overlap:
            able = " or ".join(map(repr, strategy_names(taking_overlap=True)))
            raise InputError(
                f"overlap={self.overlap} with strategy={self.strategy!r}: {self.strategy} cuts no "
                f"windows that could overlap; use overlap=0, or strategy {able}"
            )


def _check(setting: Field[Any], given: Any) -> None:
    least, choices = setting.metadata["least"], setting.metadata["choices"]
    if choices is not None and given not in choices:
        raise InputError(f"{setting.name}={given!r}: expected {' | '.join(map(str, choices))}")
    if given is None and setting.default is None:
        return
    also = ", or None" if setting.default is None else ""
    if least is not None and not is_whole(given):
        raise InputError(
            f"{setting.name}={given!r}: expected a whole number of at least {least}{also}"
        )
    if least is not None and given < least:
        raise InputError(f"{setting.name}={given!r}: expected at least {least}{also}")
    if least is not None and given > (most := setting.metadata["most"]):
        raise InputError(f"{setting.name}={given}: expected at most {most:,}{also}")


class RowArguments(TypedDict, total=False):
    """Fields of `PackSettings` that all ways to make rows take as arguments."""

    strategy: StrategyName
    overlap: int
    positions: PositionsName
    max_segments: int | None


class PackArguments(RowArguments, total=False):
    """Fields of `PackSettings` that `jaxdata.pack` takes in addition to `seq_len`."""

    seed: int
    chunk_bytes: int | None
    block_bytes: int | None
    lanes: int | None


def with_settings(settings: type, *, without: Sequence[str]) -> Callable[[F], F]:
    """Show the fields of a dataclass in the signature of a function that takes them as `**`."""

    def shown(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {parameter.name for parameter in own}
        keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
        added = [
            keyword(each.name, default=each.default, annotation=each.type)
            for each in fields(settings)
            if each.name not in names and each.name not in without
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *added]
        )
        return function

    return shown


@dataclass(frozen=True)
class PackSummary:
    """Totals of one epoch of packed rows; in slots (= tokens), except `documents` and `rows`.

    `slots = trained_tokens + overlap_tokens + boundary_tokens + padding`.
    """

    documents: int
    rows: int
    slots: int
    trained_tokens: int
    """targets with loss, stored masks not counted"""
    overlap_tokens: int
    """slots of masked context"""
    boundary_tokens: int
    """slots without a target: last tokens of documents (`concat`)"""
    padding: int
    dropped_tokens: int
    """targets in no row (`crop`)"""

    @property
    def fill(self) -> float:
        """Share of slots that are not padding."""
        return 1 - self.padding / self.slots if self.slots else 1.0

    def _repr_html_(self) -> str:
        return self.html("an epoch of packed rows")

    def html(self, title: str) -> str:
        """What a notebook shows: the counts, and what the slots hold."""
        whole = self.slots or 1
        parts = {
            "trained tokens": self.trained_tokens,
            "overlap": self.overlap_tokens,
            "boundaries": self.boundary_tokens,
            "padding": self.padding,
        }
        counts = {"documents": self.documents, "rows": self.rows, "slots": self.slots}
        shown = {**counts, **parts, "dropped": self.dropped_tokens}
        held = enumerate((name, count) for name, count in parts.items() if count)
        bar = [(name, count / whole, color_of(number)) for number, (name, count) in held]
        return table_html(title, list(shown), [list(shown.values())], bars_html([bar]))
