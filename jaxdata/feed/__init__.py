"""From rows to a trainer: batches, prefetch, worker processes, devices, and one small state.

A loader is a schedule, which says what rows each step has, and streams that make its batches here,
in a thread or in worker processes. Neither changes a row.
"""

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
