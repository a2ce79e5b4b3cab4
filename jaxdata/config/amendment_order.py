"""Which amendments of a config come next: those at the next row, wherever they are in the list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxdata.config.config_fields import AmendmentSection, Config
from jaxdata.errors import ConfigError
from jaxdata.feed.loader import Loader


def next_amendments(
    mixed: Any, pending: Mapping[int, AmendmentSection], config: Config
) -> tuple[int, list[int]]:
    """The row of the next amendments, and their numbers: several at one row count as one.

    Args:
        mixed: the rows, with all amendments made that begin before.
        pending: the other ones, by their numbers in the list.
        config: for the batch sizes that an `at_step` counts by.
    """
    loader = _loader(mixed, config)
    rows = {number: _row(loader, each) for number, each in pending.items()}
    known = [row for row in rows.values() if row is not None]
    if not known:  # steps that no row of the run has, nor will have
        number, section = next(iter(pending.items()))
        raise ConfigError(
            f"amendments.{number}: cannot seek to step {section.at_step}: the steps are 0 to "
            f"{len(loader)}"
        )
    return min(known), [number for number, row in rows.items() if row == min(known)]


def packing_of(sections: Iterable[AmendmentSection]) -> dict[str, Any]:
    """The fields of packing that some amendments set."""
    return {
        name: value
        for each in sections
        if each.pack is not None
        for name, value in each.pack.model_dump(exclude_unset=True).items()
    }


def _row(loader: Loader, section: AmendmentSection) -> int | None:
    """Where an amendment begins; None for a step after the end, which others may yet move.

    No amendment from that row on can move it, as batches before it stay as they are.
    """
    if section.at_step is None:
        return section.at_row
    if section.at_step > len(loader):
        return None
    loader.seek(step=section.at_step)
    return loader.next_row


def _loader(mixed: Any, config: Config) -> Loader:
    skips = [(a, min(b, len(mixed))) for a, b in config.loader.skip_rows if a < len(mixed)]
    return Loader(mixed, batch_size=config.loader.batch_size, skip_rows=skips)
