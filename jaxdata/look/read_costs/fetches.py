"""Requests, and bytes of them: pages fetched once a host, or exact ranges merged in each batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxdata.base.ragged import Ints, expand
from jaxdata.look.read_costs.touched import Touched


class Fetches(NamedTuple):
    """Requests of all hosts; int64 (requests,) each."""

    host: Ints
    source: Ints
    size: Ints
    """bytes"""
    first: Ints
    """the step that needs it first"""
    last: Ints
    """the step that needs it last: until then it is held"""

    def take(self, chosen: Ints) -> Fetches:
        """The chosen requests."""
        return Fetches(*(column[chosen] for column in self))


def page_fetches(touched: Touched, file_sizes: Ints, page_bytes: int) -> Fetches:
    """Each page once for each host and epoch in which the host needs it.

    Only the pages of the segment that a document was dealt with: see `spilled`.
    """
    stop = np.minimum(touched.stop, touched.home_stop)
    inside = np.flatnonzero(stop > touched.start)
    first, last = touched.start[inside] // page_bytes, (stop[inside] - 1) // page_bytes
    of, number = expand(last - first + 1)
    own, page = inside[of], first[of] + number
    before = np.cumsum(-(-file_sizes // page_bytes))
    base = np.append(0, before)
    numbered = touched.epoch[own] * base[-1] + base[touched.file[own]] + page
    hosts = int(touched.host.max(initial=0)) + 1
    key = numbered * hosts + touched.host[own]
    order = np.argsort(key)
    edges = np.flatnonzero(np.diff(key[order], prepend=-1))
    one, step = own[order][edges], touched.step[own][order]
    left = file_sizes[touched.file[one]] - page[order][edges] * page_bytes
    return Fetches(
        host=touched.host[one],
        source=touched.source[one],
        size=np.minimum(left, page_bytes),
        first=np.minimum.reduceat(step, edges) if len(edges) else edges,
        last=np.maximum.reduceat(step, edges) if len(edges) else edges,
    )


def spilled(touched: Touched) -> Touched:
    """The bytes after the segment that their document was dealt with: fetched as they are."""
    after = touched._replace(start=np.maximum(touched.start, touched.home_stop))
    return after.take(np.flatnonzero(after.stop > after.start))


def range_fetches(touched: Touched, gap_bytes: int) -> Fetches:
    """The ranges of each host and batch, merged where they lie as near as `gap_bytes`."""
    order = np.lexsort((touched.start, touched.file, touched.host, touched.step))
    by = touched.take(order)
    other = np.zeros(len(order), bool)
    for column in (by.step, by.host, by.file):
        other |= np.diff(column, prepend=-1) != 0
    reach = _reach(np.cumsum(other), by.stop)
    begins = other.copy()
    begins[1:] |= by.start[1:] > reach[:-1] + gap_bytes
    edges = np.flatnonzero(begins)
    ends = np.append(edges[1:], len(order))[: len(edges)] - 1
    size = reach[ends] - by.start[edges]
    return Fetches(by.host[edges], by.source[edges], size, by.step[edges], by.step[edges])


def _reach(group: Ints, stop: Ints) -> Ints:
    """The largest `stop` so far, within each group."""
    width = int(stop.max(initial=0)) + 1
    found: Ints = np.maximum.accumulate(group * width + stop) - group * width
    return found


def most_held(fetches: Fetches, weight: Ints) -> int:
    """The most of the weights of requests that one host holds at a time."""
    host, time = np.tile(fetches.host, 2), np.append(fetches.first, fetches.last + 1)
    change = np.append(weight, -weight)
    order = np.lexsort((change, time, host))  # what is no longer needed goes first
    return int(np.cumsum(change[order]).max(initial=0))
