"""The settings of a loader: the section `loader` of a config, the arguments of `jaxdata.Loader`."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainValidator

from jaxdata.base.errors import InputError
from jaxdata.base.settings import Settings, setting, whole
from jaxdata.feed.layouts import check_named
from jaxdata.feed.schedule import Work, check_balance, check_batch_size, whole_pairs
from jaxdata.rows.objectives import check_objective

RowPair = Annotated[list[int], Field(min_length=2, max_length=2)]


def _batch_size(value: object) -> int | list[tuple[int, int]]:
    """A number or a ramp, with the checks of the loader."""
    size = whole(value)
    ramp = check_batch_size(size)
    return size if isinstance(size, int) else ramp


def _pairs(value: object) -> list[tuple[int, int]]:
    pairs = whole_pairs(value)
    if pairs is None:
        raise InputError(f"{value!r}: expected pairs of rows, like [(4000, 4800)]")
    return pairs


def _read_by(check: Callable[[Any], Any], kind: Any) -> PlainValidator:
    """A value as a check gives it back, of a kind in the schema."""
    return PlainValidator(check, json_schema_input_type=kind)


BatchSize = Annotated[int | list[tuple[int, int]], _read_by(_batch_size, int | list[RowPair])]
Ranges = Annotated[list[tuple[int, int]], _read_by(_pairs, list[RowPair])]
LayoutName = Annotated[
    Any, _read_by(lambda it: it if callable(it) else check_named(it), str | dict[str, Any])
]
Balance = Annotated[Any, _read_by(check_balance, Work | dict[Work, int] | None)]
OneObjective = Annotated[Any, _read_by(check_objective, dict[str, Any] | None)]
Names = Annotated[
    list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else list(given))
]


class LoaderSection(Settings):
    """How rows become batches; the arguments of `jaxdata.Loader`."""

    batch_size: BatchSize = Field(
        default=32,
        description="rows in a global batch, over all hosts; or sizes by the row they begin at: "
        "[[0, 256], [100_000, 512]]",
    )
    num_workers: int = Field(
        default=0, ge=0, le=1024, description="worker processes; 0: a thread of this process"
    )
    prefetch: int = Field(default=2, ge=0, le=2**16, description="batches prepared ahead")
    drop_remainder: bool = setting(False, "drop an incomplete last batch", advanced=True)
    reiterable: bool = setting(
        False, "begin the rows again with each pass, for trainers that do", advanced=True
    )
    layout: LayoutName = Field(
        default="jaxdata",
        description="trainer whose array names, dtypes and masks a batch has; with options: "
        "{megatron: {cu_seqlens: true}}; or one of your own: my_module:function",
    )
    skip_rows: Ranges = setting(
        list, "ranges of rows to skip, as [first, stop]: [[48_000, 48_800]]", advanced=True
    )
    extras: Names = setting(
        list,
        "additional arrays: source, document, or side arrays of the data by name",
        advanced=True,
    )
    balance: Balance = Field(
        default=None,
        description="what all hosts, devices and micro-batches of a step get the same of: "
        "attention; {attention: 4096} for a sliding window",
    )
    microbatches: int = setting(
        1,
        "parts that a trainer cuts the rows of a host into, for balance",
        ge=1,
        le=2**16,
        advanced=True,
    )
    context_parallel: int = setting(
        1,
        "parts that a trainer cuts rows into: each gets a chunk of the first half and one of the "
        "second",
        ge=1,
        le=2**16,
        advanced=True,
    )

    objective: OneObjective = Field(
        default=None,
        description="what a model learns but the next token: {mtp: 3} next tokens; {fim: {prefix: "
        "…, middle: …, suffix: …}}; {span: {sentinels: […]}}; {mask: {token: …}}",
    )

    @property
    def first_batch_size(self) -> int:
        """The batch size at row 0."""
        sizes = self.batch_size
        return sizes if isinstance(sizes, int) else sizes[0][1]
