"""What a trainer trains on, to the end of a pass and resumed, and what it evaluates on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from jaxdata.feed.batch_iterator import BatchIterator
from jaxdata.feed.trees import leaves
from jaxdata.testing.proofs import Proof
from jaxdata.testing.resuming import assert_same_batches
from jaxdata.testing.trainer_probes import Asked, LossOfBatch, Probes
from jaxdata.wording import counted

Run = Callable[[int, Any], tuple[list[Any], Any]]
Evaluate = Callable[[], tuple[float, Sequence[Any]]]
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
    return _proofs(checks)


def _proofs(checks: dict[str, Callable[[], str]]) -> Iterator[Proof]:
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


def evaluation_proofs(
    evaluate: Evaluate,
    evaluation: BatchIterator,
    trained: BatchIterator,
    loss_of_batch: LossOfBatch,
    tolerance: float,
) -> Iterator[Proof]:
    """Check what a trainer evaluates.

    * `evaluated rows`: the batches have each row of the evaluation once, and none of the training.
    * `evaluated loss`: it is the mean over all targets of these rows.

    Args:
        evaluate: evaluates; returns the loss that it reports, and its batches.
        evaluation: the loader that it evaluates on; it moves.
        trained: the loader that it trains on; it moves.
        loss_of_batch: the loss of a batch with the same weights, as `check_trainer` takes it.
        tolerance: relative difference of losses.
    """
    reported, batches = evaluate()
    evaluation.reset()
    expected = list(islice(evaluation, _MOST_STEPS))
    checks: dict[str, Callable[[], str]] = {
        "evaluated rows": lambda: _evaluated_rows(batches, expected, evaluation, trained),
        "evaluated loss": lambda: _evaluated_loss(
            float(reported), Asked(loss_of_batch, evaluation, tolerance), expected, evaluation
        ),
    }
    return _proofs(checks)


def _evaluated_rows(
    batches: Iterable[Any], expected: list[Any], evaluation: BatchIterator, trained: BatchIterator
) -> str:
    padding = _rows([evaluation.deliver(Probes(evaluation.sample()).batch([]))])
    found, wanted = (
        Counter({row: n for row, n in _rows(each).items() if row not in padding})
        for each in (batches, expected)
    )
    trained.reset()
    in_training = _rows(islice(trained, _MOST_STEPS))
    both = sum(n for row, n in found.items() if row in in_training)
    assert not both, (
        f"{both} of {counted(found.total(), 'evaluated row')} are rows that it trains on: evaluate "
        "on a loader of another split"
    )
    sources = [_sources(loader) for loader in (evaluation, trained)]
    assert not (shared := sources[0] & sources[1]), (
        f"the evaluation is of documents that it trains on, {', '.join(sorted(shared))}: evaluate "
        "on another split"
    )
    missing, more = (wanted - found).total(), (found - wanted).total()
    assert not missing + more, (
        f"of the {counted(wanted.total(), 'row')} of the evaluation {missing} are missing, and "
        f"{more} are there that are not in it, or more than once: evaluate on each of its batches "
        "once, from its first (evaluation.reset()), the last one included"
    )
    return f"each of {counted(wanted.total(), 'row')} is evaluated once, and none is trained on"


def _evaluated_loss(
    reported: float, asked: Asked, expected: list[Any], evaluation: BatchIterator
) -> str:
    rows, empty = evaluation.rows, np.zeros((asked.probes.rows, asked.probes.seq_len), bool)
    losses, targets = [], []
    for step, batch in enumerate(expected):
        mask = empty.copy()
        for place, row in enumerate(evaluation.batch_rows(step).tolist()):
            mask[place] = rows[row]["loss_mask"]
        targets.append(int(mask.sum()))
        losses.append(asked.of(batch, mask) if mask.any() else 0)
    worked_out = float(np.dot(losses, targets) / sum(targets))
    assert asked.close(reported, worked_out), (
        f"the loss of the evaluation is reported as {reported:.6g}; the mean over its "
        f"{sum(targets):,} targets is {worked_out:.6g}: add up the losses of all targets, and "
        "divide once (a mean of batches weighs their targets differently)"
    )
    return f"the loss of the evaluation is the mean over its {sum(targets):,} targets"


def _rows(batches: Iterable[Any]) -> Counter[bytes]:
    """How often each row is in batches."""
    found: Counter[bytes] = Counter()
    for batch in batches:
        arrays = [np.asarray(leaf) for leaf in leaves(batch).values()]
        rows = max((len(array) for array in arrays if array.ndim), default=0)
        alike = [array for array in arrays if array.ndim and len(array) == rows]
        found.update(b"".join(array[row].tobytes() for array in alike) for row in range(rows))
    return found


def _sources(loader: BatchIterator) -> set[str]:
    """Name and content of the sources of a loader; none of transformed rows."""
    table = getattr(loader.rows, "table", None)
    return {f"{each.name} ({each.fingerprint[:8]})" for each in (table.documents if table else [])}
