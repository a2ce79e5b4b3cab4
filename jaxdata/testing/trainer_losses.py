"""What a trainer's losses tell: that they are of a distribution, and of these targets."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import counted
from jaxdata.base.ragged import Floats
from jaxdata.testing.trainer_probes import OTHERS, SHARE, Asked, NotTold, Row, moves

_ALL = 512
"""ids that are all asked about; of more, the most frequent and some of the rest"""
_SOME = 32
_CLOSE = 0.02
"""nats: how far the logarithm of a sum may be from 0, where all ids are asked about"""
_ROUGHLY = 0.7
"""the same where some are"""
_MOST_SPREAD = 2.0
"""nats: standard deviation of losses of which some stand for others; output layers begin with 0 to
1.3, and where it is more, a few targets that were not asked about may have most of the chance"""
_MOST_SMOOTHING = 0.5
_MULTIPLE = 64
"""vocabularies of models are often rounded up to one of it"""


_MOST_ROWS = 16
"""of a batch that are each compared with their documents: the first ones, the last and between"""


def _assert_same(one: float, other: float, wrong: str) -> None:
    """Two losses are equal to rounding; else `wrong` says what moved them."""
    assert not moves(one, other), wrong.format(f"the loss from {one:.6g} to {other:.6g}")


def repeats(asked: Asked) -> str:
    """The same batch has the same loss twice."""
    one, other = (asked.loss(*asked.rows) for _ in range(2))
    assert not moves(one, other), (
        f"the same batch has the loss {one:.6g} and then {other:.6g}: switch off dropout "
        "(model.eval()), and update no weights in loss_of_batch"
    )
    return f"the same batch has the same loss, {one:.6g}"


def masks(asked: Asked) -> str:
    """Targets without loss do not move it."""
    others = [
        replace(row, targets=np.where(row.mask, row.targets, asked.others(row.targets)))
        for row in asked.rows
    ]
    wrong = "targets whose loss_mask is False count: other ones move {}"
    _assert_same(asked.loss(*asked.rows), asked.loss(*others), wrong)
    return "targets without loss do not count"


def padding(asked: Asked) -> str:
    """The same row beside itself and beside padding."""
    if len(asked.rows) == 1:
        raise NotTold("a batch of one row has none beside it; `by hand` has some in the row")
    one, beside = asked.loss(*[asked.padded] * len(asked.rows)), asked.loss(asked.padded)
    _assert_same(
        *(one, beside),
        "padding counts: more of it beside the same documents moves {}; divide by the number of "
        "targets with loss, and sum over those",
    )
    return "padding does not count"


def slots(asked: Asked) -> str:
    """A slot's own input moves its loss, a later one does not."""
    row = asked.full
    here = row.at(1)  # within the first segment, neither its first slot nor its last
    before, after = row.at(0), row.of(1) & ~row.at(0) & ~here
    one = asked.loss(row.with_loss(here))
    with_own, with_earlier, with_later = (
        asked.loss(replace(row, tokens=changed).with_loss(here))
        for slots in (here, before, after)
        for changed in [np.where(slots, asked.others(row.tokens), row.tokens)]
    )
    _assert_same(
        *(one, with_later),
        "slots see tokens after them: other ones move {}; attention is not causal, or targets are "
        "shifted the other way",
    )
    if moves(one, with_own):
        return "a slot predicts its target from its input, not from what follows"
    assert not moves(one, with_earlier), (
        "the loss of a slot does not depend on its input: targets are shifted a second time; they "
        "stand in the slots that predict them"
    )
    raise NotTold(
        "no input moves the loss, as where the output layer begins at zero: check again with "
        "other weights there, or after a step of training"
    )


def last_slot(asked: Asked) -> str:
    """The last slot alone has a loss, which its target moves."""
    last = asked.seq_len - 1
    row = asked.full.with_loss(asked.full.at(last))
    target = int(asked.others(row.targets[-1:])[0])
    one, other = asked.found(row), asked.found(row.with_target(last, target))
    counts = math.isfinite(one) and (moves(one, other) or (one and asked.is_flat))
    assert counts, (
        "the last slot of a row does not count: its target was dropped, one of each row. In "
        "transformers pass shift_labels to the model (remove_unused_columns=False)"
    )
    return "the last slot of a row counts"


def ends(asked: Asked) -> str:
    """A target that ends a document has its loss, alone and in the mean of two."""
    here = asked.slot
    chosen = sorted({int(asked.ends[0]), *asked.ids[asked.ids == 0].tolist()})
    other = 1 if here != 1 else 0
    beside = asked.loss(asked.full.with_loss(asked.full.at(other)))
    for target in chosen:
        row = asked.full.with_target(here, target)
        alone = asked.found(row.with_loss(row.at(here)))
        both = asked.found(row.with_loss(row.at(here) | row.at(other)))
        expected = (alone + beside) / 2
        counts = math.isfinite(alone) and alone and asked.close(both, expected)
        assert counts, (
            f"targets of id {target} do not count as others do: alone they have the loss "
            f"{alone:.6g}, and {both:.6g} beside one of {beside:.6g}. Ignore no id (ignore_index, "
            "pad_token_id): which targets have loss is in loss_mask, and those that end documents "
            "do"
        )
    return f"targets that end documents count (id {', '.join(map(str, chosen))})"


def documents(asked: Asked) -> str:
    """What the other documents of a row hold does not move the loss of one."""
    for segment in (1, 2, 3):
        rows = [row.with_loss(row.of(segment)) for row in asked.rows]
        one = asked.loss(*rows)
        changed = asked.loss(*(asked.changed(row, row.segments != segment) for row in rows))
        _assert_same(
            *(one, changed),
            "documents of a row see each other: other tokens in the other segments move {}. Pass "
            "the mask, segment ids or cu_seqlens of the layout to attention (in transformers also "
            "use_cache=False)",
        )
    row = asked.full.with_loss(asked.full.at(1))
    earlier = np.where(row.at(0), asked.others(row.tokens), row.tokens)
    context = moves(asked.loss(row), asked.loss(replace(row, tokens=earlier)))
    alone = "" if context else ", and no token a later one's of its own document"
    return f"no document moves another's loss{alone}"


def mean_over_targets(asked: Asked) -> str:
    """The share of one target, the others being in another document, and in another row."""
    here = asked.slot
    other, alone = asked.swing(asked.full, here)

    def some(row: Row, segment: int) -> Any:
        """Some slots of a segment, not its last."""
        slots = row.of(segment) & np.append(row.of(segment)[1:], False) & ~row.at(here)
        return slots & (np.cumsum(slots) <= OTHERS)

    beside = some(asked.full, 2)
    places = {"documents": [[row.with_loss(row.at(here) | beside)] for row in (asked.full, other)]}
    if len(asked.rows) > 1:
        last = [row.with_loss(row.mask & False) for row in asked.rows[1:]]
        last[-1] = last[-1].with_loss(some(last[-1], 1))
        places["rows, or of micro-batches"] = [
            [row.with_loss(row.at(here)), *last] for row in (asked.full, other)
        ]
    for of, (rows, others) in places.items():
        targets = sum(int(row.mask.sum()) for row in rows)
        share = asked.share(rows, others, alone)
        assert abs(share * targets - 1) <= SHARE, (
            f"targets do not count alike: one of {targets} has {share:.3g} of the loss instead of "
            f"{1 / targets:.3g}, the others being in another place. The loss is a mean of {of}, "
            "or not divided by the number of targets: add up all losses, and divide once by the "
            "number of targets with loss"
        )
    return "each target has the same share of the loss"


def by_hand(asked: Asked) -> str:
    """Each row is its documents one by one, and the batch its rows."""
    rows = asked.rows
    silent = [row.with_loss(row.mask & False) for row in rows]
    between = np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(int)
    numbers = sorted({*between.tolist(), *range(min(len(rows), 3))})
    counted_rows, documents = [], 0
    for number in numbers:
        row = rows[number]
        alone = [row.alone(each, asked.restart) for each in range(1, int(row.segments.max()) + 1)]
        worked_out = _mean([(asked.loss(each), int(each.mask.sum())) for each in alone])
        found = asked.loss(*silent[:number], row, *silent[number + 1 :])
        assert asked.close(found, worked_out), (
            f"the loss of the {len(alone)} documents in row {number + 1} of {len(rows)} is "
            f"{found:.6g}; worked out document by document it is {worked_out:.6g}: positions, "
            "masks or segments are not those of the batch"
        )
        counted_rows.append((worked_out, int(row.mask.sum())))
        documents += len(alone)
    whole = _mean(counted_rows)
    found = asked.loss(*(row if k in numbers else silent[k] for k, row in enumerate(rows)))
    assert asked.close(found, whole), (
        f"the loss of {documents} documents in {counted(len(numbers), 'row')} is {found:.6g}; "
        f"worked out document by document it is {whole:.6g}: it is no mean over all targets"
    )
    return f"the loss of {documents} packed documents is theirs one by one, {found:.6g}"


def _mean(losses: list[tuple[float, int]]) -> float:
    """The mean of means, each of so many targets."""
    each, targets = zip(*losses, strict=True)
    return float(np.average(each, weights=targets))


def nats(asked: Asked, vocab_size: int | None) -> str:
    """The chances of all targets of a slot, exp(-loss), add to 1.

    Of many targets some are asked about, and estimate the others. Where the number of ids is
    unknown, those of the data cannot exceed 1.
    """
    here, close = asked.slot, asked.tolerance
    ids, stands_for = _chosen(asked.ids, vocab_size)
    rows = [row.with_loss(row.at(here)) for row in (asked.full, asked.row(full=True))]
    losses = np.array([asked.loss(rows[0].with_target(here, target)) for target in ids])
    total, whole = math.log(_sum(losses, stands_for)), len(ids) == vocab_size
    least, slack, about = -math.inf, _CLOSE, ""
    if vocab_size:
        least = math.log(vocab_size / -(-vocab_size // _MULTIPLE) / _MULTIPLE)
    if vocab_size and not whole:
        slack, about = _ROUGHLY + 5 * _error(losses, stands_for), f"about (by {len(ids)} of them) "
    slack = max(slack, 10 * close)
    if about and losses.std() > _MOST_SPREAD and total <= slack:
        raise NotTold(
            f"the chances of {vocab_size:,} targets of a slot cannot be told from {len(ids)}: "
            "the model is too sure of some; check it at its first weights"
        )
    if least - slack <= total <= slack:
        said = f"the chances of {vocab_size or len(ids):,} targets of a slot add to {about}"
        unknown = ", at most 1; give vocab_size to compare those of all"
        return f"{said}{math.exp(total):.3g}{'' if vocab_size else unknown}"
    if whole and total < 0:
        others = np.array([asked.loss(rows[1].with_target(here, target)) for target in ids])
        one, other = (
            _solve(partial(_smoothed, each), 0, _MOST_SMOOTHING) for each in (losses, others)
        )
        if one and other and abs(one - other) < 0.002 + close:
            return f"the loss has label smoothing of {one:.2g}"
    times = _solve(lambda by: math.log(_sum(losses / by, stands_for)), 1 / 64, 64)
    or_times = f", or it were multiplied by {times:.3g}" if times else ""
    raise AssertionError(
        f"exp(-loss) of all targets of a slot adds to {math.exp(total):.3g}, and chances add to 1: "
        f"as if {-total:.3g} were added to the loss{or_times}. Return the cross-entropy in nats, "
        "neither scaled (by steps of accumulation, or processes) nor shifted; if the model has "
        "more ids than the data, give vocab_size"
    )


def _chosen(ids: NDArray[np.int32], vocab_size: int | None) -> tuple[list[int], Floats]:
    """Ids to ask about, and how many each stands for."""
    if vocab_size is None:
        few = ids[: 2 * _SOME].tolist()
        return few, np.ones(len(few))
    if vocab_size <= _ALL:
        return list(range(vocab_size)), np.ones(vocab_size)
    frequent = ids[:_SOME].tolist()
    drawn = np.random.default_rng(0).permutation(vocab_size).tolist()
    rest = [each for each in drawn if each not in frequent][:_SOME]
    each = (vocab_size - len(frequent)) / len(rest)
    return [*frequent, *rest], np.repeat([1, each], [len(frequent), len(rest)])


def _sum(losses: Floats, stands_for: Floats) -> float:
    return float(np.exp(-losses) @ stands_for) or math.ulp(0)


def _error(losses: Floats, stands_for: Floats) -> float:
    """The standard error of the sum of those that stand for others, relative to the sum."""
    chances = np.exp(-losses)[stands_for > 1]
    if not len(chances):
        return 0.0
    deviation = chances.std() * math.sqrt(len(chances)) * stands_for.max()
    return float(deviation / _sum(losses, stands_for))


def _smoothed(losses: Floats, by: float) -> float:
    """The logarithm of the sum of chances, were label smoothing of `by` taken off the losses."""
    return math.log(_sum((losses - by * losses.mean()) / (1 - by), np.ones(len(losses))))


def _solve(function: Callable[[float], float], low: float, high: float) -> float | None:
    """Where a function that increases is 0; None if it is not between the two."""
    if function(low) > 0 or function(high) < 0:
        return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return (low + high) / 2


def weights(asked: Asked) -> str:
    """By how much a weight of 2 multiplies the share of its target, over that of another."""
    here, name = asked.slot, asked.weighted[0]
    there = 1 if here != 1 else 0
    counted_slots = asked.full.at(here) | asked.full.at(there) | asked.full.of(2)
    heavy, shares = np.where(asked.full.at(here), 2.0, 1.0), []
    for slot in (here, there):
        other, alone = asked.swing(asked.full, slot)
        one, moved = (
            replace(row, weights=heavy).with_loss(counted_slots) for row in (asked.full, other)
        )
        shares.append(asked.share([one], [moved], alone))
    times = shares[0] / shares[1]
    assert abs(times / 2 - 1) <= SHARE, (
        f"a target whose {name} is 2 counts {times:.3g} times one of 1: multiply the loss of each "
        f"slot by {name} in that slot (leave_out={{'weights'}} if it is for something else)"
    )
    return f"a target whose {name} is 2 counts twice"
