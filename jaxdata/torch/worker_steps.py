"""Steps divided among the workers of a torch `DataLoader`, and the states that they give.

A `DataLoader` takes a batch from each worker in turn: worker *w* of *n* makes every *n*-th step.
Its state is the loader's after its own last step. When the trainer has received that step, it is
the state of the whole stream, and so of the `StatefulDataLoader`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxdata.errors import StateMismatch
from jaxdata.feed.saved_state import SavedState, are_sizes, is_row, refused, shown


@dataclass
class Turn:
    """The steps that a worker makes: after `ahead` others, one of every `workers`."""

    worker: int
    workers: int
    ahead: int

    @classmethod
    def of(cls, info: Any) -> Turn:
        """From `torch.utils.data.get_worker_info()`; worker 0 has the first step."""
        return cls(info.id, info.num_workers, info.id)

    def taken(self) -> None:
        """Record that this worker has made a step."""
        self.ahead = self.workers - 1

    def parse(self, saved: SavedState) -> tuple[int, list[tuple[int, int]]]:
        """The steps ahead, and the batch sizes asked for, of the state of a worker like this."""
        turn: dict[str, Any] = saved.turn or {}
        ahead: Any = turn.get("ahead")
        sizes: Any = turn.get("batch_sizes")
        if not (is_row(ahead) and ahead < self.workers and are_sizes(sizes)):
            raise refused(
                f"the state of worker {self.worker} of this StatefulDataLoader has turn "
                f"{shown(saved.turn)}: expected steps `ahead`, fewer than {self.workers} workers, "
                "and `batch_sizes`"
            )
        return ahead, [(row, size) for row, size in sizes]


def whole_state(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """A loader's state, and the steps after it, from that state or a `StatefulDataLoader`'s."""
    try:
        if "_snapshot" in state:
            snapshot, steps = state["_snapshot"], state["_steps_since_snapshot"]
            last = f"worker_{snapshot['_last_yielded_worker_id']}"
            found = snapshot["_worker_snapshots"][last]["fetcher_state"]["dataset_iter_state"]
        elif "fetcher_state" in state:
            found, steps = state["fetcher_state"]["dataset_iter_state"], 0
        else:
            return state, 0
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateMismatch(
            "this state of a StatefulDataLoader has none of a jaxdata.torch.Loader in it "
            f"({error} is missing): it had another dataset, or torchdata has a new format"
        ) from None
    if not is_row(steps):
        raise StateMismatch(
            f"this state of a StatefulDataLoader has _steps_since_snapshot {shown(steps)}: "
            "expected a whole number of at least 0"
        )
    return found, steps
