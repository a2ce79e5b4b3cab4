"""What a trainer trains on: the loader's order, resumed, and to the end of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from jaxdata.feed.batch_iterator import BatchIterator
from jaxdata.testing.proofs import Proof
from jaxdata.testing.resuming import assert_same_batches

Run = Callable[[int, Any], tuple[list[Any], Any]]
_STEPS = 6
_MOST_STEPS = 1_000  # of a pass that is run through


def run_proofs(run: Run, loader: BatchIterator) -> Iterator[Proof]:
    """Check the batches that a trainer really trained on.

    * `order`: the first steps are the loader's, in its order.
    * `resuming`: half of them, and the rest from the state saved there, are the same.
    * `passes`: a pass and two steps more are as many steps, where the loader is `reiterable`.

    Args:
        run: `run(steps, state)` trains that many steps with a new trainer, from the state that
            another call returned, or None; returns its batches and the state it saved.
        loader: a new one, at its first row, of the same kind; it moves.
    """
    steps = len(loader)
    loader.reset()
    first = list(islice(loader, min(_STEPS, steps)))
    checks: dict[str, Callable[[], str]] = {
        "order": lambda: _order(run, first),
        "resuming": lambda: _resuming(run, first),
    }
    if loader.reiterable and steps <= _MOST_STEPS:
        checks["passes"] = lambda: _passes(run, steps)
    for name, check in checks.items():
        try:
            yield Proof(name, True, check())
        except Exception as error:  # whatever a trainer raises is what is wrong
            told = isinstance(error, AssertionError)
            yield Proof(name, False, str(error) if told else f"{type(error).__name__}: {error}")


def _order(run: Run, expected: list[Any]) -> str:
    trained, _ = run(len(expected), None)
    try:
        count = assert_same_batches(trained, expected)
    except (AssertionError, ValueError) as error:
        raise AssertionError(
            f"the trainer trains on other batches than the loader gives, or in another order "
            f"({error}): switch off its own shuffling and its own packing"
        ) from None
    return f"the first {count} steps are the loader's"


def _resuming(run: Run, expected: list[Any]) -> str:
    half = len(expected) // 2
    try:
        _, state = run(half, None)
        trained, _ = run(len(expected) - half, state)
    except Exception as error:
        raise AssertionError(
            f"the trainer does not resume: {type(error).__name__}: {error}"
        ) from error
    try:
        assert_same_batches(trained, expected[half:])
    except (AssertionError, ValueError) as error:
        raise AssertionError(
            f"{half} steps, and the rest after resuming, are not the steps of one run ({error}): "
            "save the loader's state with the model, and give it back"
        ) from None
    return f"{half} + {len(expected) - half} steps resumed are the {len(expected)} steps of one run"


def _passes(run: Run, steps: int) -> str:
    trained, _ = run(steps + 2, None)
    assert len(trained) == steps + 2, (
        f"of {steps + 2} steps the trainer made {len(trained)}, and said nothing: a pass has "
        f"{steps}, and the next one was empty; call iter(loader) for each pass"
    )
    return f"the step after the {steps} of a pass is the first of the next one"
