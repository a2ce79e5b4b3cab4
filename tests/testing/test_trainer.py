"""check_trainer: right trainers pass; each fault is named in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError
from jaxdata.testing import check_trainer
from tests import commands
from tests.builders import run
from tests.feed.test_layouts import MODEL, VOCAB, nats, same_segment

LENGTHS = np.random.default_rng(0).integers(2, 20, 60)
TEXTS = [np.append(np.random.default_rng(n).integers(1, VOCAB, n), 0) for n in LENGTHS.tolist()]
DOCUMENTS = jaxdata.ArrayDocuments(TEXTS)
ROWS = jaxdata.pack(DOCUMENTS, seq_len=24)
NAMES = ["repeats", "masks", "padding", "slots", "last slot", "ends", "documents", "mean"]
NAMES += ["by hand", "nats"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """These models are smaller than a task for another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def loader(**settings: Any) -> Any:
    return jaxdata.Loader(ROWS, **{"batch_size": 4, "prefetch": 0, **settings})


def costs(batch: Any, *, seen: Any = None, positions: Any = None) -> torch.Tensor:
    """The loss of each slot."""
    seen = same_segment(batch["segment_ids"]) if seen is None else seen
    positions = batch["positions"] if positions is None else positions
    return nats(MODEL(batch["inputs"], positions, seen), batch["targets"]).detach()


def mean(each: torch.Tensor, mask: Any) -> float:
    mask = torch.tensor(mask)
    return float((each * mask).sum() / mask.sum())


def right(batch: Any) -> float:
    return mean(costs(batch), batch["loss_mask"])


def everything_seen(batch: Any) -> Any:
    return same_segment(np.ones_like(batch["segment_ids"]))


def shifted_again(batch: Any) -> float:
    logits = MODEL(batch["inputs"], batch["positions"], same_segment(batch["segment_ids"]))
    targets = torch.tensor(np.where(batch["loss_mask"], batch["targets"], -100)).long()
    shifted = logits.detach()[:, :-1].flatten(0, 1), targets[:, 1:].flatten()
    return float(functional.cross_entropy(*shifted))


def uncausal(batch: Any) -> float:
    ids = batch["segment_ids"]
    return mean(costs(batch, seen=ids[:, :, None] == ids[:, None]), batch["loss_mask"])


def mean_of_rows(batch: Any) -> float:
    rows = zip(costs(batch), torch.tensor(batch["loss_mask"]), strict=True)
    return float(torch.stack([each[mask].mean() for each, mask in rows if mask.any()]).mean())


ALONG = np.tile(np.arange(24), (4, 1))


def later_row(batch: Any, fault: Any) -> float:
    """A fault in the third row only."""
    each = costs(batch)
    each[2] = fault(batch)[2]
    return mean(each, batch["loss_mask"])


def dropped(batch: Any) -> float:
    """Other random weights at each call."""
    return float((costs(batch) * torch.rand(batch["inputs"].shape)).mean())


FAULTS = {
    "leak": (
        lambda batch: later_row(batch, lambda all_: costs(all_, seen=everything_seen(all_))),
        "documents: documents of a row see each other: other tokens in the other segments move",
    ),
    "padding has loss": (
        lambda batch: mean(costs(batch), batch["loss_mask"] | (batch["segment_ids"] == 0)),
        "padding: padding counts: the loss is",
    ),
    "masks ignored": (
        lambda batch: mean(costs(batch), batch["segment_ids"] > 0),
        "masks: targets whose loss_mask is False count: other ones move the loss from",
    ),
    "last target": (
        lambda batch: mean(costs(batch)[:, :-1], batch["loss_mask"][:, :-1]),
        "last slot: the last slot of a row does not count: its target was dropped",
    ),
    "ends ignored": (
        lambda batch: mean(costs(batch), batch["loss_mask"] & (batch["targets"] != 0)),
        "ends: targets of id 0 do not count as others do: alone they have the loss nan, and ",
    ),
    "shifted twice": (shifted_again, "slots: the loss of a slot does not depend on its input: tar"),
    "not causal": (uncausal, "slots: slots see tokens after them: other ones move the loss from"),
    "positions of a later row": (
        lambda batch: later_row(batch, lambda all_: costs(all_, positions=ALONG)),
        "by hand: the loss of the 3 documents in row 3 of 4 is",
    ),
    "mean of rows": (
        mean_of_rows,
        "mean: targets do not count alike: one of 8 has 0.5 of the loss instead of 0.125",
    ),
    "bits": (
        lambda batch: right(batch) / np.log(2),
        "nats: exp(-loss) of all targets of a slot adds to 0.204, and chances add to 1: as if 1.59 "
        "were added to the loss. Return the cross-entropy in nats, without label smoothing",
    ),
    "dropout": (dropped, "repeats: the same batch has the loss"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault: str) -> None:
    loss, sentence = FAULTS[fault]
    with pytest.raises(AssertionError, match="does not do what its batches say") as caught:
        check_trainer(loss, loader(), vocab_size=VOCAB)
    assert sentence in str(caught.value)


def zero_head(batch: Any) -> float:
    """All targets are as likely."""
    return float(np.log(VOCAB))


def bigrams(batch: Any) -> float:
    """No attention."""
    alone = np.broadcast_to(np.eye(24, dtype=bool), (len(batch["inputs"]), 24, 24))
    logits = MODEL(batch["inputs"], batch["positions"] * 0, alone).detach()
    return mean(nats(logits, batch["targets"]), batch["loss_mask"])


def sum_and_count(batch: Any) -> Any:
    mask = torch.tensor(batch["loss_mask"])
    return (costs(batch) * mask).sum(), mask.sum()


EACH = "nats: the chances of 64 targets of a slot add to 1"
RIGHT: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "a mean": (right, {}, [EACH]),
    "sum and count": (sum_and_count, {}, [EACH]),
    "the loss of each slot": (costs, {}, [EACH]),
    "zero head": (
        zero_head,
        {},
        [
            "slots: not tested: no input moves the loss, as where the output layer begins at zero",
            "last slot: the last slot of a row counts",
            "mean: not tested: all targets have the same loss, as where the output layer begins at",
            EACH,
        ],
    ),
    "no context": (
        bigrams,
        {},
        ["documents: no document moves another's loss, and no token a later one's of its own"],
    ),
    "a vocabulary that is rounded up": (right, {"vocab_size": 60}, ["nats: the chances of 60 tar"]),
    "an unknown vocabulary": (right, {"vocab_size": None}, ["at most 1; give vocab_size to comp"]),
}


@pytest.mark.parametrize("trainer", RIGHT)
def test_each_right_trainer_passes(trainer: str) -> None:
    loss, settings, sentences = RIGHT[trainer]
    found = check_trainer(loss, loader(), **{"vocab_size": VOCAB, **settings})
    assert [each.split(":")[0] for each in found] == NAMES
    for sentence in sentences:
        assert sentence in "\n".join(found)
    assert ("not tested" in "\n".join(found)) == (trainer == "zero head")


def test_weights_of_targets_count() -> None:
    weights = [np.linspace(0.5, 2, len(text)) for text in TEXTS]
    documents = jaxdata.ArrayDocuments(TEXTS, side={"weight": weights})
    rows = jaxdata.pack(documents, seq_len=24)
    weighted = jaxdata.Loader(rows, batch_size=4, prefetch=0, extras=["target_weight"])

    def weighed(batch: Any) -> float:
        by = torch.tensor(batch["target_weight"] * batch["loss_mask"])
        return float((costs(batch) * by).sum() / by.sum())

    found = check_trainer(weighed, weighted, vocab_size=VOCAB)
    assert found[-1] == "weights: a target whose target_weight is 2 counts twice"
    with pytest.raises(AssertionError) as caught:
        check_trainer(right, weighted, vocab_size=VOCAB)
    assert str(caught.value).splitlines()[1:] == [
        "weights: a target whose target_weight is 2 counts 1 times one of 1: multiply the loss "
        "of each slot by target_weight in that slot (leave_out={'weights'} if it is for "
        "something else)"
    ]


def test_a_check_can_be_left_out() -> None:
    def leaks(batch: Any) -> float:
        return mean(costs(batch, seen=everything_seen(batch)), batch["loss_mask"])

    assert len(check_trainer(leaks, loader(), leave_out={"documents", "by hand"})) == 8
    with pytest.raises(InputError, match=r"leave_out=\['leaks'\]: the checks are repeats, masks,"):
        check_trainer(leaks, loader(), leave_out={"leaks"})


def test_rows_that_cannot_be_asked_about_are_refused() -> None:
    pairs = jaxdata.pairs(*[jaxdata.ArrayDocuments([[1, 2, 0]], [[0, 1, 1]])] * 2, seq_len=8)
    with pytest.raises(InputError, match=r"these rows have chosen_inputs, .*: expected packed"):
        check_trainer(right, jaxdata.Loader(pairs, batch_size=1))
    with pytest.raises(InputError, match=r"an array of shape \(4,\): expected a number, \(sum, co"):
        check_trainer(lambda batch: batch["inputs"][:, 0], loader())


class Updates:
    """Updates of numbers of pairs of tokens; faults are those of trainers that were seen."""

    def __init__(self, fault: str = "", *, learns: float | None = None) -> None:
        self.fault, self.learns = fault, learns
        self.weights = np.random.default_rng(0).normal(size=VOCAB**2)

    def summed(self, batch: Any) -> tuple[Any, int]:
        """The gradient of the sum of the losses, which is linear here, and the targets."""
        at = batch["loss_mask"]
        pairs = batch["inputs"][at] * VOCAB + batch["targets"][at]
        return np.bincount(pairs, minlength=VOCAB**2).astype(float), len(pairs)

    def __call__(self, batches: Any) -> Any:
        batches = {"last dropped": batches[:-1], "first only": batches[:1]}.get(
            self.fault, batches
        ) or batches
        sums, counts = zip(*map(self.summed, batches), strict=True)
        means = [one / max(count, 1) for one, count in zip(sums, counts, strict=True)]
        gradient = {
            "mean of means": np.mean(means, 0),
            "sum of means": np.sum(means, 0),
            "noise": np.random.default_rng().normal(size=VOCAB**2),
        }.get(self.fault, sum(sums) / sum(counts))
        if self.learns is None:
            return gradient
        return {"weights": (self.weights - self.learns * gradient).astype(np.float32)}


@pytest.mark.parametrize("learns", [None, 1e-3])
def test_updates_of_micro_batches_pass(learns: float | None) -> None:
    (says,) = check_trainer(right, loader(), update=Updates(learns=learns), leave_out=NAMES)
    assert says.startswith("micro-batches: updates of micro-batches are those of one batch, with r")
    assert "1, 10 and " in says


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("last dropped", ": the last one is dropped. Add up the losses of all targets of an upda"),
        ("first only", ": only the first one is read. Add"),
        ("mean of means", ": it is the mean of their means. Add"),
        ("sum of means", ": their means are added up. Add"),
        ("noise", "micro-batches: two updates of the same batch differ: begin each with the same"),
    ],
)
def test_each_fault_of_an_update_is_named(fault: str, sentence: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_trainer(right, loader(), update=Updates(fault), leave_out=NAMES)
    assert sentence in str(caught.value)


def test_updates_that_tell_nothing_say_so() -> None:
    asked = {"update": Updates(learns=0.0), "leave_out": NAMES}
    assert "the learning rate" in check_trainer(right, loader(), **asked)[0]
    alone = check_trainer(right, loader(batch_size=1), update=Updates(), leave_out=NAMES)
    assert alone == ["micro-batches: not tested: a batch of one row has no parts"]


class Trainer:
    """Trains on batches and saves a state; its faults are those of trainers that were seen."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def __call__(self, steps: int, state: Any) -> tuple[list[Any], Any]:
        one = loader(reiterable=True)
        if state is not None and self.fault == "dies":
            raise TypeError("'Loader' object cannot be skipped")
        if state is not None and self.fault != "forgets":
            one.set_state(state)
        trained = list(islice(one, steps))
        while len(trained) < steps and self.fault != "empty":
            trained += islice(one, steps - len(trained))
        if self.fault == "shuffles":
            trained = trained[::-1]
        return trained, one.get_state()


def test_a_run_passes() -> None:
    found = check_trainer(right, loader(reiterable=True), run=Trainer())
    assert [each.split(":")[0] for each in found[len(NAMES) :]] == ["order", "resuming", "passes"]
    assert found[len(NAMES) + 1].endswith("3 + 3 steps resumed are the 6 steps of one run")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("shuffles", "order: the trainer trains on other batches than the loader gives, or in an"),
        ("dies", "resuming: the trainer does not resume: TypeError: 'Loader' object cannot be"),
        ("forgets", "resuming: 3 steps, and the rest after resuming, are not the steps of one run"),
        ("empty", "and said nothing: a pass has"),
    ],
)
def test_each_fault_of_a_run_is_named(fault: str, sentence: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_trainer(right, loader(reiterable=True), run=Trainer(fault))
    assert sentence in str(caught.value)


HELD_OUT = [
    np.append(np.random.default_rng(n).integers(1, VOCAB, 1 + n % 30), 0) for n in range(100, 150)
]


def held_out() -> Any:
    rows = jaxdata.pack(jaxdata.ArrayDocuments(HELD_OUT, name="val/a"), seq_len=24)
    return jaxdata.Loader(rows, batch_size=4, prefetch=0)


def evaluated(batches: list[Any], *, by_batches: bool = False) -> tuple[float, list[Any]]:
    targets = [1 if by_batches else int(batch["loss_mask"].sum()) for batch in batches]
    losses = [right(batch) * n for batch, n in zip(batches, targets, strict=True)]
    return sum(losses) / sum(targets), batches


def test_an_evaluation_passes() -> None:
    rows = len(held_out().rows)
    assert rows % 4  # the last batch has padding
    asked = {"evaluate": lambda: evaluated(list(held_out())), "evaluation": held_out()}
    first, second = check_trainer(right, loader(), **asked, leave_out=NAMES)
    once = f"evaluated rows: each of {rows} rows is evaluated once, and none is trained on"
    assert first == once
    assert second.startswith("evaluated loss: the loss of the evaluation is the mean over its ")
    with pytest.raises(InputError, match="evaluate= needs evaluation=, the loader that it evalua"):
        check_trainer(right, loader(), evaluate=lambda: (0, []), leave_out=NAMES)


@pytest.mark.parametrize(
    ("batches", "sentence"),
    [
        (loader, "evaluated rows are rows that it trains on: evaluate on a loader of a"),
        (lambda: list(held_out())[:-1], "1 are missing, and 0 are there that are not "),
        (held_out, "evaluated loss: the loss of the evaluation is reported as "),
    ],
)
def test_each_fault_of_an_evaluation_is_named(batches: Any, sentence: str) -> None:
    def evaluate() -> Any:
        return evaluated(list(batches()), by_batches=batches is held_out)

    with pytest.raises(AssertionError) as caught:
        check_trainer(right, loader(), evaluate=evaluate, evaluation=held_out(), leave_out=NAMES)
    assert sentence in str(caught.value)


MODULE = """
import numpy as np
chances = np.random.default_rng(0).dirichlet([9] * 257, 257)
def right(batch):
    nats = -np.log(chances[batch["tokens"], batch["labels"]])
    return (nats * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
def wrong(batch):
    return right(batch) + batch["tokens"].mean()
def means(batches):
    return [np.mean([right(b) for b in batches]) * np.ones(3)]
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = {"batch_size": 2, "layout": "megatron"}
    path = run(tmp_path, {"a": [30, 20, 9]}, pack={"seq_len": 16}, loader=layout)
    (tmp_path / "toy_trainer.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    for asked, code, says in (
        ("right", 0, "10 checks of the trainer hold"),
        ("wrong", 1, "FAILED  documents documents of a row see each other"),
        ("right,means", 1, "it is the mean of their means"),
        ("none", 1, "--trainer 'toy_trainer:none': toy_trainer has no 'none'"),
    ):
        said = commands.run("verify", path, "--trainer", f"toy_trainer:{asked}", status=code)
        assert says in said.stdout + said.stderr
