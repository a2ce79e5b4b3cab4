"""What a trainer does with batches, found out from what it answers about some made for that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from jaxdata.documents.converted_dataset import open_dataset
from jaxdata.errors import InputError
from jaxdata.feed.batch_iterator import BatchIterator
from jaxdata.testing import trainer_losses as losses
from jaxdata.testing.proofs import Proof
from jaxdata.testing.trainer_probes import Asked, LossOfBatch, NotTold


def check_trainer(
    loss_of_batch: LossOfBatch,
    loader: BatchIterator,
    *,
    run: Callable[[int, Any], Any] | None = None,
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
    found = list(
        trainer_proofs(
            loss_of_batch, loader, tolerance=tolerance, vocab_size=vocab_size, leave_out=leave_out
        )
    )
    if run is not None:
        from jaxdata.testing.trainer_run import run_proofs

        found += run_proofs(run, loader)
    if evaluate is not None:
        from jaxdata.testing.trainer_run import evaluation_proofs

        if evaluation is None:
            raise InputError("evaluate= needs evaluation=, the loader that it evaluates on")
        found += evaluation_proofs(evaluate, evaluation, loader, loss_of_batch, tolerance)
    wrong = [f"{proof.name}: {proof.says}" for proof in found if not proof.holds]
    if wrong:
        raise AssertionError("this trainer does not do what its batches say\n" + "\n".join(wrong))
    return [f"{proof.name}: {proof.says}" for proof in found]


def trainer_proofs(
    loss_of_batch: LossOfBatch,
    loader: BatchIterator,
    *,
    tolerance: float = 1e-4,
    vocab_size: int | None = None,
    leave_out: Collection[str] = (),
) -> Iterator[Proof]:
    """The checks of :func:`check_trainer`, one after the other; a wrong one ends none of them.

    Args:
        loss_of_batch: as there, like what follows.
        loader: of packed rows.
        tolerance: how far losses may differ.
        vocab_size: of the model.
        leave_out: names of checks.
    """
    asked = Asked(loss_of_batch, loader, tolerance)
    checks: dict[str, Callable[[Asked], str]] = {
        "repeats": losses.repeats,
        "masks": losses.masks,
        "padding": losses.padding,
        "slots": losses.slots,
        "last slot": losses.last_slot,
        "ends": losses.ends,
        "documents": losses.documents,
        "mean": losses.mean_over_targets,
        "by hand": losses.by_hand,
        "nats": partial(losses.nats, vocab_size=vocab_size or vocabulary(loader)),
        "weights": losses.weights,
    }
    if unknown := set(leave_out) - set(checks):
        raise InputError(f"leave_out={sorted(unknown)}: the checks are {', '.join(checks)}")
    if not asked.probes.weighted:
        del checks["weights"]
    for name, check in checks.items():
        if name not in leave_out:
            try:
                yield Proof(name, True, check(asked))
            except AssertionError as error:
                yield Proof(name, False, str(error))
            except NotTold as why:
                yield Proof(name, True, f"not tested: {why}")


def vocabulary(loader: BatchIterator) -> int | None:
    """Ids of the tokenizer of a loader's data; None where they are unknown."""
    table = getattr(loader.rows, "table", None)
    stores = {each.store.url for each in (table.documents if table else []) if each.store}
    try:
        return max((open_dataset(url).tokenizer.vocab_size for url in stores), default=None)
    except InputError:
        return None
