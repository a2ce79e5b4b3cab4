"""What a trainer does with batches, found out from its losses alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from jaxdata.errors import InputError
from jaxdata.feed.batch_iterator import BatchIterator
from jaxdata.testing.proofs import Proof
from jaxdata.testing.trainer_probes import Probes, Row
from jaxdata.wording import counted

LossOfBatch = Callable[[Any], Any]
_EXACTLY = 1e-6
"""relative: what nothing but rounding may move"""


def check_trainer(
    loss_of_batch: LossOfBatch,
    loader: BatchIterator,
    *,
    run: Callable[[int, Any], Any] | None = None,
    tolerance: float = 1e-4,
    leave_out: Collection[str] = (),
) -> list[str]:
    """Check that a trainer does with a loader's batches what they say.

    The trainer is asked for the losses of small batches made for the purpose, which have the
    shapes, ids, layout and placement of the loader's:

    * `repeats`: the same batch has the same loss twice (else dropout is on, or weights change).
    * `masks`: other targets where `loss_mask` is False do not move the loss.
    * `padding`: rows of padding beside a row do not move the loss, which is a mean over targets.
    * `slots`: the loss of one slot moves with its input, and not with the inputs after it (else
      targets are shifted twice, or slots see the future).
    * `last slot`: the target of the last slot of a row moves the loss.
    * `documents`: with loss in one document only, other tokens in the other documents of its row
      do not move the loss.
    * `by hand`: the loss of full rows is the mean over targets of those of each document in a row
      of its own.

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
        tolerance: relative difference allowed `by hand`; more for losses in low precision.
        leave_out: names of checks that are not made: `{"documents", "by hand"}` for a trainer that
            lets documents attend to each other on purpose.

    Returns:
        What was found to hold, a sentence for each check.

    Raises:
        AssertionError: with a sentence for each thing that is wrong.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 4, 0]] * 9), seq_len=8)
    >>> def loss_of_batch(batch):  # a model that knows bigrams
    ...     nats = np.abs(batch["inputs"] * 0.3 - batch["targets"])
    ...     return (nats * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
    >>> len(check_trainer(loss_of_batch, jaxdata.Loader(rows, batch_size=2)))
    7
    """
    found = list(trainer_proofs(loss_of_batch, loader, tolerance=tolerance, leave_out=leave_out))
    if run is not None:
        from jaxdata.testing.trainer_run import run_proofs

        found += run_proofs(run, loader)
    wrong = [f"{proof.name}: {proof.says}" for proof in found if not proof.holds]
    if wrong:
        raise AssertionError("this trainer does not do what its batches say\n" + "\n".join(wrong))
    return [f"{proof.name}: {proof.says}" for proof in found]


def trainer_proofs(
    loss_of_batch: LossOfBatch,
    loader: BatchIterator,
    *,
    tolerance: float = 1e-4,
    leave_out: Collection[str] = (),
) -> Iterator[Proof]:
    """The checks of :func:`check_trainer`, one after the other; a wrong one ends none of them."""
    asked = Asked(loss_of_batch, loader)
    checks: dict[str, Callable[[Asked], str]] = {
        "repeats": _repeats,
        "masks": _masks,
        "padding": _padding,
        "slots": _slots,
        "last slot": _last_slot,
        "documents": _documents,
        "by hand": partial(_by_hand, tolerance=tolerance),
    }
    if unknown := set(leave_out) - set(checks):
        raise InputError(f"leave_out={sorted(unknown)}: the checks are {', '.join(checks)}")
    for name, check in checks.items():
        if name not in leave_out:
            try:
                yield Proof(name, True, check(asked))
            except AssertionError as error:
                yield Proof(name, False, str(error))


class Asked:
    """A trainer that is asked for losses of batches of given rows."""

    def __init__(self, loss_of_batch: LossOfBatch, loader: BatchIterator) -> None:
        self._loss_of_batch, self._loader = loss_of_batch, loader
        self.probes = Probes(loader.sample())
        self.full, self.padded = (self.probes.row(full=full) for full in (True, False))

    def loss(self, *rows: Row, fill: bool = True) -> float:
        """The mean loss of a batch of these rows."""
        batch = self.probes.batch(list(rows), fill=fill)
        loss = _mean(self._loss_of_batch(self._loader.deliver(batch)), batch["loss_mask"])
        if not math.isfinite(loss):
            raise AssertionError(f"the loss of a batch with targets is {loss}")
        return loss


def _mean(given: Any, mask: Any) -> float:
    """A loss in any of the forms that `check_trainer` takes."""
    if isinstance(given, tuple):
        total, count = (float(each) for each in given)
        return total / count if count else math.nan
    each = given.detach().cpu() if hasattr(given, "detach") else given
    array = np.asarray(each, np.float64)
    if not array.ndim:
        return float(array)
    if array.shape != mask.shape:
        raise InputError(
            f"loss_of_batch gave an array of shape {array.shape}: expected a number, (sum, count) "
            f"or losses of shape {mask.shape}"
        )
    return float(array[mask].sum() / mask.sum())


def _moves(one: float, other: float) -> bool:
    return abs(one - other) > _EXACTLY * max(abs(one), abs(other))


def _repeats(asked: Asked) -> str:
    one, other = (asked.loss(asked.full) for _ in range(2))
    assert not _moves(one, other), (
        f"the same batch has the loss {one:.6g} and then {other:.6g}: switch off dropout "
        "(model.eval()), and update no weights in loss_of_batch"
    )
    return f"the same batch has the same loss, {one:.6g}"


def _masks(asked: Asked) -> str:
    row = asked.full
    other = np.where(row.mask, row.targets, asked.probes.others(row.targets))
    one, changed = asked.loss(row), asked.loss(replace(row, targets=other))
    assert not _moves(one, changed), (
        f"targets whose loss_mask is False count: other ones move the loss from {one:.6g} to "
        f"{changed:.6g}"
    )
    return "targets without loss do not count"


def _padding(asked: Asked) -> str:
    row = asked.padded
    if asked.probes.rows > 1:
        one, beside = asked.loss(row), asked.loss(row, fill=False)
    else:
        one, beside = _with_more_padding(asked)
    assert not _moves(one, beside), (
        f"padding counts: the loss is {one:.6g}, and {beside:.6g} of the same documents beside "
        "more padding; divide by the number of targets with loss, and sum over those"
    )
    return "padding does not count"


def _with_more_padding(asked: Asked) -> tuple[float, float]:
    """The loss of two documents together, and the mean of each beside padding."""
    row, shares = asked.padded, []
    for segment in (1, 2):
        alone = row.alone(segment, at_start=False)
        shares.append((asked.loss(alone), int(alone.mask.sum())))
    count = sum(count for _, count in shares)
    return asked.loss(row), sum(loss * count for loss, count in shares) / count


def _slots(asked: Asked) -> str:
    row, probes = asked.full, asked.probes
    here = np.zeros_like(row.mask)
    here[probes.seq_len // 6] = True  # within the first segment
    after = row.of(1) & (np.cumsum(here) - here > 0)
    one = asked.loss(row.with_loss(here))
    moved = replace(row, tokens=np.where(here, probes.others(row.tokens), row.tokens))
    assert _moves(one, asked.loss(moved.with_loss(here))), (
        "the loss of a slot does not depend on its input: targets are shifted a second time; they "
        "stand in the slots that predict them"
    )
    later = replace(row, tokens=np.where(after, probes.others(row.tokens), row.tokens))
    changed = asked.loss(later.with_loss(here))
    assert not _moves(one, changed), (
        f"slots see tokens after them: other ones move the loss from {one:.6g} to {changed:.6g}; "
        "attention is not causal, or targets are shifted the other way"
    )
    return "a slot predicts its target from its input, not from what follows"


def _last_slot(asked: Asked) -> str:
    row, probes = asked.full, asked.probes
    some = row.with_loss(row.of(3))
    some.mask[-1] = True
    other = replace(some, targets=some.targets.copy())
    other.targets[-1:] = probes.others(some.targets[-1:])
    assert _moves(asked.loss(some), asked.loss(other)), (
        "the last slot of a row does not count: its target was dropped, one of each row. In "
        "transformers pass shift_labels to the model (remove_unused_columns=False)"
    )
    return "the last slot of a row counts"


def _documents(asked: Asked) -> str:
    row, probes = asked.full, asked.probes
    for segment in (1, 2, 3):
        one = asked.loss(row.with_loss(row.of(segment)))
        others = probes.changed(row, row.segments != segment)
        changed = asked.loss(others.with_loss(row.of(segment)))
        assert not _moves(one, changed), (
            f"documents of a row see each other: other tokens in the other segments move the loss "
            f"of segment {segment} from {one:.6g} to {changed:.6g}. Pass the mask, segment ids or "
            "cu_seqlens of the layout to attention (in transformers also use_cache=False)"
        )
    return "no document moves another's loss"


def _by_hand(asked: Asked, tolerance: float) -> str:
    probes, rows = asked.probes, [asked.full, asked.padded][: asked.probes.rows]
    alone = [
        row.alone(segment, probes.restart)
        for row in rows
        for segment in range(1, int(row.segments.max()) + 1)
    ]
    targets = [int(each.mask.sum()) for each in alone]
    losses = [asked.loss(each) for each in alone]
    expected = float(np.dot(losses, targets) / sum(targets))
    found = asked.loss(*rows, fill=False)
    assert abs(found - expected) <= tolerance * max(abs(expected), abs(found)), (
        f"the loss of {len(alone)} documents in {counted(len(rows), 'row')} is {found:.6g}; "
        f"worked out document by document it is {expected:.6g}: positions, masks or the mean over "
        "targets are not those of the batch"
    )
    return f"the loss of {len(alone)} packed documents is theirs one by one, {found:.6g}"
