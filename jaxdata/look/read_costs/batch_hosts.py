"""The step of a row, and the host that reads it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.ragged import Ints
from jaxdata.look.read_costs.cluster import Cluster
from jaxdata.rows.table import RowTable

_ROWS_AT_ONCE = 2**20


class BatchHosts:
    """Every step of a run in the order of rows that batches have (see `rows/table.py`).

    Args:
        table: the rows of the run.
        cluster: its batch size and hosts; host *h* of *H* has rows `[h B / H, (h + 1) B / H)`.
    """

    def __init__(self, table: RowTable, cluster: Cluster, rows: int) -> None:
        self._cluster = cluster
        starts = [start for start, _ in table.sections() if start < rows]
        self._tables = [part for start, part in table.sections() if start < rows]
        self._starts = np.array(starts or [0])
        self._ends = np.append(self._starts[1:], rows)
        steps = -(-(self._ends - self._starts) // cluster.batch_size)
        self._steps_before = np.cumsum(steps) - steps
        self.steps = int(steps.sum())

    def locate(self, rows: Ints) -> tuple[Ints, Ints]:
        """The step and the host of each row, of increasing numbers; int64 (rows,) each."""
        steps, hosts = np.empty_like(rows), np.empty_like(rows)
        section = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(section).tolist():
            mine = np.flatnonzero(section == number)
            within, offset = np.divmod(rows[mine] - self._starts[number], self._cluster.batch_size)
            steps[mine] = self._steps_before[number] + within
            hosts[mine] = self._hosts_in(number, within, offset)
        return steps, hosts

    def _hosts_in(self, section: int, steps: Ints, offsets: Ints) -> Ints:
        """The hosts of the rows at some offsets of increasing steps of a section."""
        size, hosts = self._cluster.batch_size, self._cluster.hosts
        if self._tables[section].lanes == 1:
            return offsets * hosts // size
        found = np.empty_like(steps)
        for some, mine in _groups(steps, max(_ROWS_AT_ONCE // size, 1)):
            place = self._places(section, some)
            at = np.searchsorted(some, steps[mine])
            found[mine] = place[at, offsets[mine]] * hosts // size
        return found

    def _places(self, section: int, steps: Ints) -> NDArray[np.integer]:
        """(steps, batch_size): the place in its sorted batch of each row of some steps."""
        size, end = self._cluster.batch_size, self._ends[section]
        rows = (self._starts[section] + steps[:, None] * size + np.arange(size)).ravel()
        key = self._tables[section].batch_key(np.minimum(rows, end - 1))
        key = np.where(rows < end, key, np.iinfo(np.uint64).max)  # padding stays last
        order = np.argsort(key.reshape(len(steps), size), axis=1, kind="stable")
        place = np.empty_like(order)
        np.put_along_axis(place, order, np.arange(size)[None, :], axis=1)
        return place


def _groups(steps: Ints, most: int) -> Iterator[tuple[Ints, slice]]:
    """Groups of at most `most` distinct numbers of an increasing array, and their slices."""
    known = np.unique(steps)
    for first in range(0, len(known), most):
        some = known[first : first + most]
        begin, end = np.searchsorted(steps, [some[0], some[-1] + 1])
        yield some, slice(int(begin), int(end))
