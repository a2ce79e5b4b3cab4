"""Runs whose weights are changed while they go on: the rows of a loader, amended by its own calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.rows.map_datasets import MixedDataset
from jaxdata.rows.mixing.amended_rows import Amendment, amended, check_named
from jaxdata.rows.mixing.phases import Weights


def check_steered(rows: Any, weights: Weights) -> MixedDataset:
    """Refuse rows that no weights mix, and weights that are not of their sources."""
    if not isinstance(rows, MixedDataset):
        raise InputError(
            f"these rows cannot be reweighed: given a {type(rows).__name__}, expected rows as "
            "jaxdata.mix returns them, not transformed ones"
        )
    check_named(weights, rows.table.names)
    return rows


def reweighed(rows: MixedDataset, row: int, weights: Weights, asked_at: int) -> MixedDataset:
    """The same rows up to `row`, as a loader asked for it whose next row was `asked_at`."""
    return MixedDataset(amended(rows.table, row, change_of(weights, asked_at)))


def change_of(weights: Weights, asked_at: int) -> Amendment:
    return Amendment({}, None, None, None, weights, asked_at)


def replayed(rows: Any, noted: Sequence[Mapping[str, Any]]) -> tuple[Any, str]:
    """Rows with the changes that a run made while it went on, and why they do not fit, if so.

    Args:
        rows: of the run, with the amendments that were planned.
        noted: the amendments in its state; those without `asked_at` were planned.
    """
    for each in noted:
        if "asked_at" not in each:
            continue
        try:
            mixed = check_steered(rows, each["weights"])
            rows = reweighed(mixed, each["row"], each["weights"], each["asked_at"])
        except (InputError, SourceExhausted) as error:
            return rows, f"the run was reweighed from row {each['row']:,} on: {error}"
    return rows, ""
