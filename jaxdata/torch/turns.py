"""Steps shared out among the workers of a torch `DataLoader`, and the states they give.

A `DataLoader` takes a batch from each worker in turn: worker *w* of *n* makes every *n*-th step.
Its state is the loader's after its own last step, which is that of the whole stream when the
trainer has got that step; so the state of a whole `StatefulDataLoader` is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxdata.errors import StateMismatch

__all__ = ["Turn", "whole_state"]


@dataclass
class Turn:
    """Which steps a worker makes: after `ahead` others, one of every `workers`."""

    worker: int
    workers: int
    ahead: int

    @classmethod
    def of(cls, info: Any) -> Turn:
        """From `torch.utils.data.get_worker_info()`; worker 0 has the first step."""
        return cls(info.id, info.num_workers, info.id)

    def taken(self) -> None:
        """Note that this worker has made a step."""
        self.ahead = self.workers - 1


def whole_state(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """A loader's state and how many steps after it, from that or a `StatefulDataLoader`'s."""
    try:
        if "_snapshot" in state:
            snapshot = state["_snapshot"]
            last = f"worker_{snapshot['_last_yielded_worker_id']}"
            found = snapshot["_worker_snapshots"][last]["fetcher_state"]["dataset_iter_state"]
            return found, state["_steps_since_snapshot"]
        if "fetcher_state" in state:
            return state["fetcher_state"]["dataset_iter_state"], 0
    except (KeyError, TypeError) as error:
        raise StateMismatch(
            "this state of a StatefulDataLoader has none of a jaxdata.torch.Loader in it "
            f"({error} is missing): its dataset was another, or torchdata has a new format"
        ) from None
    return state, 0
