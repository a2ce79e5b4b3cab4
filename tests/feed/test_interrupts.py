"""Ctrl-C at any moment: the loader goes on with the batch after the last that was delivered."""

from __future__ import annotations

from typing import Any

import pytest

from jaxdata.feed.batches import HostPlacement, PlacedStream
from jaxdata.feed.schedule import Schedule
from jaxdata.feed.streams.shared import BatchReceiver
from jaxdata.processes import Worker
from jaxdata.testing import assert_same_batches
from tests.feed.test_loader import REFERENCE, loader


class Interrupting:
    """A method that Ctrl-C breaks off when it has done its work, the n-th time."""

    def __init__(self, method: Any, when: int) -> None:
        self.method, self.when = method, when

    def __get__(self, owner: Any, _: Any) -> Any:
        def call(*args: Any) -> Any:
            found = self.method(owner, *args)
            self.when -= 1
            if self.when == 0:
                raise KeyboardInterrupt
            return found

        return call


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ((Worker, "receive"), {"num_workers": 2}),
        ((BatchReceiver, "receive"), {"num_workers": 2, "prefetch": 0}),
        ((HostPlacement, "place"), {"num_workers": 2}),
        ((HostPlacement, "place"), {"prefetch": 0}),
        ((PlacedStream, "__next__"), {"prefetch": 0}),
        ((Schedule, "advance"), {"num_workers": 2}),
    ],
)
def test_after_an_interrupt_it_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, method: tuple[type, str], settings: dict[str, Any]
) -> None:
    one = loader(**settings)
    batches: list[Any] = []
    where, name = method
    monkeypatch.setattr(where, name, Interrupting(getattr(where, name), when=5))
    with pytest.raises(KeyboardInterrupt):
        batches.extend(one)
    delivered = one.step
    assert_same_batches(batches, REFERENCE[: len(batches)])
    assert_same_batches(list(one), REFERENCE[delivered:])
    assert delivered - len(batches) == (name == "advance")  # it was counted, as it says
    one.close()
