"""What a trainer does with batches, found out by what it answers to some made for that."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError, counted
from jaxdata.base.ragged import Floats
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.opening import ConvertedDocuments, open_dataset
from jaxdata.feed.layouts import leaves
from jaxdata.feed.loader import BatchIterator
from jaxdata.rows.map_datasets import row_table
from jaxdata.testing import trainer_losses as losses
from jaxdata.testing.proofs import Proof, assert_same_batches, rows_of
from jaxdata.testing.trainer_probes import Asked, LossOfBatch, NotTold, Row, numbers_of

Run = Callable[[int, Any], tuple[list[Any], Any]]
Update = Callable[[Sequence[Any]], Any]
Check = Callable[[], str]
"""says what holds, in a sentence; raises AssertionError with what does not"""
_TARGETS = (1, 10)
"""of the rows of a batch whose updates are compared, in turn; the third has all"""
_OFF = 0.02
"""relative to what another batch would change: how far updates of the same rows may differ"""
_STEPS = 6
_MOST_STEPS = 1_000  # of a pass that is run through


def _order(run: Run, expected: list[Any]) -> str:
    trained, _ = run(len(expected), None)
    _assert_same(
        trained,
        expected,
        "the trainer trains on other batches than the loader gives, or in another order",
        "switch off its own shuffling and its own packing",
    )
    return f"the first {len(expected)} steps are the loader's"


def _resuming(run: Run, expected: list[Any]) -> str:
    half = len(expected) // 2
    _, state = run(half, None)
    trained, _ = run(len(expected) - half, state)
    _assert_same(
        trained,
        expected[half:],
        f"{half} steps, and the rest after resuming, are not the steps of one run",
        "save the loader's state with the model, and give it back",
    )
    return f"{half} + {len(expected) - half} steps resumed are the {len(expected)} steps of one run"


def _assert_same(trained: list[Any], expected: list[Any], wrong: str, instead: str) -> None:
    try:
        assert_same_batches(trained, expected)
    except (AssertionError, ValueError) as error:
        raise AssertionError(f"{wrong} ({error}): {instead}") from None


def _passes(run: Run, steps: int) -> str:
    trained, _ = run(steps + 2, None)
    assert len(trained) == steps + 2, (
        f"of {steps + 2} steps the trainer made {len(trained)}, and said nothing: a pass has "
        f"{steps}, and the next one was empty; call iter(loader) for each pass"
    )
    return f"the step after the {steps} of a pass is the first of the next one"


def _evaluated_rows(
    batches: Iterable[Any], asked: Asked, expected: list[Any], trained: BatchIterator
) -> str:
    padding = rows_of([asked.batch()])
    found, wanted = (
        Counter({row: n for row, n in rows_of(each).items() if row not in padding})
        for each in (batches, expected)
    )
    trained.reset()
    in_training = rows_of(islice(trained, _MOST_STEPS))
    both = sum(n for row, n in found.items() if row in in_training)
    assert not both, (
        f"{both} of {counted(found.total(), 'evaluated row')} are rows that it trains on: evaluate "
        "on a loader of another split"
    )
    sources = [_sources(loader) for loader in (asked.loader, trained)]
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


def _evaluated_loss(reported: float, asked: Asked, expected: list[Any]) -> str:
    losses, targets, evaluation = [], [], asked.loader
    for step, batch in enumerate(expected):
        mask = np.zeros((len(asked.rows), asked.seq_len), bool)
        for place, row in enumerate(evaluation.batch_rows(step).tolist()):
            mask[place] = evaluation.rows[row]["loss_mask"]
        targets.append(int(mask.sum()))
        losses.append(asked.of(batch, mask) if mask.any() else 0)
    worked_out = float(np.dot(losses, targets) / sum(targets))
    assert asked.close(reported, worked_out), (
        f"the loss of the evaluation is reported as {reported:.6g}; the mean over its "
        f"{sum(targets):,} targets is {worked_out:.6g}: add up the losses of all targets, and "
        "divide once (a mean of batches weighs their targets differently)"
    )
    return f"the loss of the evaluation is the mean over its {sum(targets):,} targets"


def _sources(loader: BatchIterator) -> set[str]:
    """Name and content of the sources of a loader; none of transformed rows."""
    return {f"{each.name} ({each.fingerprint[:8]})" for each in _documents(loader)}


def _documents(loader: BatchIterator) -> Sequence[Documents]:
    table = row_table(loader.rows)
    return table.documents if table else []


def _micro_batches(asked: Asked, update: Update) -> str:
    """An update of several batches is that of one batch of all their rows."""
    if len(asked.rows) < 2:
        raise NotTold("a batch of one row has no parts")
    most = cycle([*_TARGETS, asked.seq_len])
    rows = [row.with_loss(row.mask & (np.cumsum(row.mask) <= next(most))) for row in asked.rows]

    def updated(*parts: list[Row]) -> Floats:
        return _weights(update([asked.batch(*part) for part in parts]))

    whole, again = updated(rows), updated(rows)
    scale = max(float(np.abs(whole).max(initial=0)), 1e-30)
    assert _distance(whole, again) <= 1e-6 * scale * len(whole) ** 0.5, (
        "two updates of the same batch differ: begin each with the same weights and the same state "
        "of the optimizer, without dropout"
    )
    for size in sorted({1, -(-len(rows) // 2)}):
        parts = [rows[first : first + size] for first in range(0, len(rows), size)]
        found, each = updated(*parts), [updated(part) for part in parts]
        moved = max(_distance(one, whole) for one in each)
        if not moved:
            raise NotTold("updates of other rows are the same: is the learning rate 0?")
        targets = [sum(int(row.mask.sum()) for row in part) for part in parts]
        assert _distance(found, whole) <= _OFF * moved, (
            f"an update of {len(parts)} micro-batches of {_listed(targets)} targets is not that of "
            f"one batch of all {sum(targets)}: {_instead(found, each, targets, moved)}. Add up the "
            "losses of all targets of an update, over its micro-batches and ranks, and divide once "
            "by their number"
        )
    counts = sorted({int(row.mask.sum()) for row in rows})
    return f"updates of micro-batches are those of one batch, with rows of {_listed(counts)}"


def _instead(found: Floats, each: Sequence[Floats], targets: Sequence[int], moved: float) -> str:
    """What was made of the micro-batches; exact of gradients, and of plain descent."""
    guesses = {
        "the last one is dropped": np.average(each[:-1], 0, targets[:-1]),
        "only the first one is read": each[0],
        "it is the mean of their means": np.mean(each, 0),
        "their means are added up": np.sum(each, 0),
    }
    for guess, worked_out in guesses.items():
        if _distance(found, worked_out) <= _OFF * moved:
            return guess
    return f"the two differ by {_distance(found, each[0]) / moved:.2g} of what one of them changes"


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last


def _distance(one: Floats, other: Floats) -> float:
    return float(np.linalg.norm(one - other))


def _weights(given: Any) -> Floats:
    """All numbers of a tree of arrays, one after another."""
    return np.concatenate([numbers_of(array).ravel() for array in leaves(given).values()])


def check_trainer(
    loss_of_batch: LossOfBatch,
    loader: BatchIterator,
    *,
    run: Callable[[int, Any], Any] | None = None,
    update: Callable[[Sequence[Any]], Any] | None = None,
    evaluate: Callable[[], tuple[float, Sequence[Any]]] | None = None,
    evaluation: BatchIterator | None = None,
    tolerance: float = 1e-4,
    vocab_size: int | None = None,
    leave_out: Collection[str] = (),
) -> list[str]:
    """Check that a trainer does with a loader's batches what they say.

    The trainer is asked for the losses of batches made for the purpose, which have the shapes,
    ids, layout and placement of the loader's:

    * `repeats`: the same batch has the same loss twice (else dropout is on, or weights change).
    * `masks`: other targets where `loss_mask` is False do not move the loss.
    * `padding`: rows of padding beside a row do not move the loss, which is a mean over targets.
    * `slots`: the loss of one slot moves with its input, and not with the inputs after it (else
      targets are shifted twice, or slots see the future).
    * `last slot`: the target of the last slot of a row moves the loss.
    * `ends`: targets that end documents, and those of id 0, count as others do.
    * `documents`: with loss in one document only, other tokens in the other documents of its row
      do not move the loss.
    * `mean`: each target has the same share of the loss, whatever row or document it is in (else
      it is a mean of means).
    * `by hand`: the loss of each row is the mean over targets of those of each document in a row
      of its own, and the loss of a batch the mean over the targets of its rows. Of more than 16
      rows, 16 are looked at.
    * `nats`: the chances of all targets of a slot, exp(-loss), add to 1 (else losses are scaled or
      shifted); beyond 512 ids estimated, to a factor of two.
    * `weights`: where the loader has `target_weight` or the like among its extras, a target of
      weight 2 counts twice.

    A check that tells nothing of a trainer says so, and holds: where the output layer begins at
    zero, all targets have the same loss.

    Args:
        loss_of_batch: of a batch as the loader delivers it: the mean loss over its targets with
            loss; or (sum, number of them); or an array of the loss of each slot, (batch, seq_len).
            In float32, deterministic, without an update of the weights.
        loader: a `jaxdata.Loader` or `jaxdata.torch.Loader` of packed rows.
        run: `run(steps, state)` trains so many steps with a new trainer, from the state that
            another call returned, or None; it returns its batches, and the state it saved. With it
            `order`, `resuming` and, of a `reiterable` loader, `passes` are checked too: it trains
            on the loader's batches, half a run resumed is the other half, and the step after a
            pass is not silently missing. The loader is then reset, and moves.
        update: `update(batches)` makes one update of which these batches are the micro-batches (or
            the parts of ranks), always from the same weights; it returns the weights after it, or
            the gradients, as arrays in dicts, lists or tuples. With it `micro-batches` is checked
            too: one update of several batches, with 1, 10 and more targets, is that of one batch of
            all their rows.
        evaluate: evaluates with the weights of `loss_of_batch`; it returns the loss it reports, and
            the batches it had. With it `evaluated rows` (each of the evaluation's once, none that
            is trained on) and `evaluated loss` (the mean over all targets) are checked too.
        evaluation: the loader that `evaluate` evaluates on; it is then reset, and moves.
        tolerance: relative difference allowed where batches are compared with others; more for
            losses in low precision.
        vocab_size: ids of the model; those of the data's tokenizer, where that is known.
        leave_out: names of checks that are not made: `{"documents", "by hand"}` for a trainer that
            lets documents attend to each other on purpose.

    Returns:
        What was found to hold, a sentence for each check.

    Raises:
        AssertionError: with a sentence for each thing that is wrong.

    >>> import jaxdata, numpy as np
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 4, 0]] * 9), seq_len=8)
    >>> def loss_of_batch(batch):  # a model that knows bigrams
    ...     nats = np.abs(batch["inputs"] * 0.3 - batch["targets"]) + 1.1
    ...     return (nats * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
    >>> len(check_trainer(loss_of_batch, jaxdata.Loader(rows, batch_size=2)))
    10
    """
    given: dict[str, Any] = {"update": update, "tolerance": tolerance}
    given |= {"vocab_size": vocab_size, "leave_out": leave_out}
    found = [*trainer_proofs(loss_of_batch, loader, **given)]
    checks: dict[str, Check] = {}
    if run is not None:
        steps = len(loader)
        loader.reset()
        first = list(islice(loader, min(_STEPS, steps)))
        checks |= {"order": partial(_order, run, first), "resuming": partial(_resuming, run, first)}
        if loader.reiterable and steps <= _MOST_STEPS:
            checks["passes"] = partial(_passes, run, steps)
    if evaluate is not None:
        if evaluation is None:
            raise InputError("evaluate= needs evaluation=, the loader that it evaluates on")
        reported, batches = evaluate()
        evaluation.reset()
        expected = list(islice(evaluation, _MOST_STEPS))
        asked = Asked(loss_of_batch, evaluation, tolerance)
        checks |= {
            "evaluated rows": partial(_evaluated_rows, batches, asked, expected, loader),
            "evaluated loss": partial(_evaluated_loss, float(reported), asked, expected),
        }
    found += _proofs(checks, Exception)  # whatever a trainer raises is wrong
    wrong = [f"{proof.name}: {proof.says}" for proof in found if not proof.holds]
    if wrong:
        raise AssertionError("this trainer does not do what its batches say\n" + "\n".join(wrong))
    return [f"{proof.name}: {proof.says}" for proof in found]


def trainer_proofs(
    loss_of_batch: LossOfBatch,
    loader: BatchIterator,
    *,
    update: Callable[[Sequence[Any]], Any] | None = None,
    tolerance: float = 1e-4,
    vocab_size: int | None = None,
    leave_out: Collection[str] = (),
) -> Iterator[Proof]:
    """The checks of :func:`check_trainer`, one after the other; a wrong one ends none of them.

    Args:
        loss_of_batch: as there, like what follows.
        loader: of packed rows.
        update: of micro-batches.
        tolerance: how far losses may differ.
        vocab_size: of the model.
        leave_out: names of checks.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 4, 0]] * 9), seq_len=8)
    >>> proofs = trainer_proofs(lambda batch: 1.0, jaxdata.Loader(rows, batch_size=2))
    >>> [proof.name for proof in proofs if not proof.holds][0]
    'nats'
    """
    asked = Asked(loss_of_batch, loader, tolerance)
    checks: dict[str, Check] = {
        "repeats": partial(losses.repeats, asked),
        "masks": partial(losses.masks, asked),
        "padding": partial(losses.padding, asked),
        "slots": partial(losses.slots, asked),
        "last slot": partial(losses.last_slot, asked),
        "ends": partial(losses.ends, asked),
        "documents": partial(losses.documents, asked),
        "mean": partial(losses.mean_over_targets, asked),
        "by hand": partial(losses.by_hand, asked),
        "nats": lambda: losses.nats(asked, vocab_size or vocabulary(loader)),
        "weights": partial(losses.weights, asked),
    }
    if unknown := set(leave_out) - set(checks):
        raise InputError(f"leave_out={sorted(unknown)}: the checks are {', '.join(checks)}")
    left_out = {*leave_out, *(() if asked.weighted else ["weights"])}
    yield from _proofs({name: check for name, check in checks.items() if name not in left_out})
    if update is not None:
        yield from _proofs({"micro-batches": partial(_micro_batches, asked, update)}, Exception)


def _proofs(checks: dict[str, Check], wrong: type[Exception] = AssertionError) -> Iterator[Proof]:
    for name, check in checks.items():
        try:
            yield Proof(name, True, check())
        except NotTold as why:
            yield Proof(name, True, f"not tested: {why}")
        except wrong as error:
            told = isinstance(error, AssertionError)
            yield Proof(name, False, str(error) if told else f"{type(error).__name__}: {error}")


def vocabulary(loader: BatchIterator) -> int | None:
    """Ids of the tokenizer of a loader's data; None where they are unknown, as in other tools'."""
    every = [each.base for each in _documents(loader)]
    stores = {each.store.url for each in every if isinstance(each, ConvertedDocuments)}
    try:
        return max((open_dataset(url).tokenizer.vocab_size for url in stores), default=None)
    except InputError:
        return None
