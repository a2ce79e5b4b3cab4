"""From rows to a trainer: batches, prefetch, worker processes, devices, and one small state.

In the order in which data passes:

loader      `jaxdata.Loader`: the grain face of a pipeline
batch_iterator  the members of every loader
pipeline    opens the streams of a schedule at any row, and closes them
schedule    the rows of each step: batch sizes and ramps, over the rows that `skips` leaves
batches     making them, where they go, and the stream that an iterator reads
streams/    batches made in worker processes, ahead in a thread, or of rows fetched ahead
warming     fetching what a run in a bucket reads first
layouts/    names, dtypes and masks of other trainers, with `attention` for their kernels
trees       batches of any structure, as their leaves
device/     batches as global arrays of JAX
same_rows   the states of all processes compared at the first batch
state       the position of a run, and why a state is refused
checkpoint  the state in Orbax's checkpoints
report      what was delivered so far, against the plan
"""

from __future__ import annotations

from jaxdata.base.lazy import resolver

__getattr__ = resolver(__name__)
