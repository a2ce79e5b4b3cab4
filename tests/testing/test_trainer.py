"""check_trainer: right trainers pass; each fault is named in a sentence."""

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch.nn import functional

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError
from jaxdata.testing import check_trainer
from tests import commands
from tests.builders import run
from tests.clients.tiny import Tiny, tensor

VOCAB = 64
MODEL = Tiny(VOCAB)
LENGTHS = np.random.default_rng(0).integers(2, 20, 60)
TEXTS = [np.append(np.random.default_rng(n).integers(1, VOCAB, n), 0) for n in LENGTHS.tolist()]
DOCUMENTS = jaxdata.ArrayDocuments(TEXTS)
ROWS = jaxdata.pack(DOCUMENTS, seq_len=24)
NAMES = ["repeats", "masks", "padding", "slots", "last slot", "ends", "documents", "mean"]
NAMES += ["by hand", "nats"]


def loader(**settings: Any) -> Any:
    return jaxdata.Loader(ROWS, **{"batch_size": 4, "prefetch": 0, **settings})


def same_segment(ids: Any) -> Any:
    return (ids[:, :, None] == ids[:, None]) & np.tri(24, dtype=bool)


@torch.no_grad()
def logits(batch: Any, model: Any = MODEL, *, seen: Any = None, positions: Any = None) -> Any:
    seen = same_segment(batch["segment_ids"]) if seen is None else seen
    positions = batch["positions"] if positions is None else positions
    return model(tensor(batch["inputs"]).long(), tensor(positions).long(), tensor(seen))


def nats(found: Any, batch: Any, **options: Any) -> torch.Tensor:
    """The loss of each slot."""
    targets = tensor(batch["targets"]).long()
    return functional.cross_entropy(found.mT, targets, reduction="none", **options)


def costs(batch: Any, **asked: Any) -> torch.Tensor:
    return nats(logits(batch, **asked), batch)


def mean(each: torch.Tensor, mask: Any) -> float:
    mask = torch.tensor(mask)
    return float((each * mask).sum() / mask.sum())


def right(batch: Any) -> float:
    return mean(costs(batch), batch["loss_mask"])


def everything_seen(batch: Any) -> Any:
    return same_segment(np.ones_like(batch["segment_ids"]))


def shifted_again(batch: Any) -> float:
    targets = torch.tensor(np.where(batch["loss_mask"], batch["targets"], -100)).long()
    return float(functional.cross_entropy(logits(batch)[:, :-1].mT, targets[:, 1:]))


def uncausal(batch: Any) -> float:
    ids = batch["segment_ids"]
    return mean(costs(batch, seen=ids[:, :, None] == ids[:, None]), batch["loss_mask"])


def mean_over(batch: Any, groups: Any, each: torch.Tensor) -> float:
    """The mean of the means of groups of slots that have targets."""
    masks = [torch.tensor(group & batch["loss_mask"]) for group in groups]
    return float(torch.stack([each[mask].mean() for mask in masks if mask.any()]).mean())


def rows_of(batch: Any) -> list[Any]:
    """The slots of each row."""
    numbers = np.broadcast_to(np.arange(4)[:, None], batch["inputs"].shape)
    return [numbers == row for row in range(4)]


def documents_of(batch: Any) -> list[Any]:
    ids = batch["segment_ids"]
    return [row & (ids == segment) for row in rows_of(batch) for segment in range(1, ids.max() + 1)]


ALONG = np.tile(np.arange(24), (4, 1))


def later_row(batch: Any, **asked: Any) -> float:
    """A fault in the third row only."""
    each = costs(batch)
    each[2] = costs(batch, **asked)[2]
    return mean(each, batch["loss_mask"])


def smoothed(batch: Any) -> float:
    return mean(nats(logits(batch), batch, label_smoothing=0.2), batch["loss_mask"])


def dropped(batch: Any) -> float:
    """Other random weights at each call."""
    return float((costs(batch) * torch.rand(batch["inputs"].shape)).mean())


def without_ends(batch: Any, each: torch.Tensor) -> float:
    return mean(each, batch["loss_mask"] & (batch["targets"] != 0))


def without_last(batch: Any, each: torch.Tensor) -> float:
    return mean(each[:, :-1], batch["loss_mask"][:, :-1])


def of_zeros(batch: Any) -> torch.Tensor:
    """The loss of each slot where the head is of zeros."""
    return torch.full(batch["inputs"].shape, np.log(VOCAB)).double()


FAULTS = {
    "leak": (lambda batch: later_row(batch, seen=everything_seen(batch)),
        "documents: documents of a row see each other: other tokens in the other segments move"),
    "padding has loss": (
        lambda batch: mean(costs(batch), batch["loss_mask"] | (batch["segment_ids"] == 0)),
        "padding: padding counts: more of it beside the same documents moves the loss from "),
    "masks ignored": (lambda batch: mean(costs(batch), batch["segment_ids"] > 0),
        "masks: targets whose loss_mask is False count: other ones move the loss from"),
    "last target": (lambda batch: without_last(batch, costs(batch)),
        "last slot: the last slot of a row does not count: its target was dropped"),
    "ends ignored": (lambda batch: without_ends(batch, costs(batch)),
        "ends: targets of id 0 do not count as others do: alone they have the loss nan, and "),
    "shifted twice": (shifted_again, "slots: the loss of a slot does not depend on its input"),
    "not causal": (uncausal, "slots: slots see tokens after them: other ones move the loss from"),
    "positions of a later row": (lambda batch: later_row(batch, positions=ALONG),
        "by hand: the loss of the 3 documents in row 3 of 4 is"),
    "rows left out": (lambda batch: mean(costs(batch)[:2], batch["loss_mask"][:2]),
        "by hand: the loss of a batch with targets is nan"),
    "mean of rows": (lambda batch: mean_over(batch, rows_of(batch), costs(batch)),
        "mean: one of 8 has 0.5 of the loss instead of 0.125, the others being in another place. "
        "The loss is a mean of rows, or of micro-batches, or not divided by the number of targets"),
    "mean of documents": (lambda batch: mean_over(batch, documents_of(batch), costs(batch)),
        "mean: The loss is a mean of documents, or not divided by the number of targets"),
    "sum": (lambda batch: costs(batch)[torch.tensor(batch["loss_mask"])].sum(),
        "mean: targets do not count alike: one of "),
    "bits": (lambda batch: right(batch) / np.log(2),
        "nats: added to the loss, or it were multiplied by 1.44. Return the cross-entropy in nats"),
    "a constant": (lambda batch: right(batch) + 0.5, "nats: and chances add to 1: as if 0.5 were"),
    "dropout": (dropped, "repeats: the same batch has the loss"),
    "no number": (lambda batch: float("nan"), "repeats: the loss of a batch with targets is nan"),
    "zero head, padding": (
        lambda batch: (of_zeros(batch) * torch.tensor(batch["loss_mask"])).mean(),
        "padding: padding counts: more of it"),
    "zero head, ends ignored": (lambda batch: without_ends(batch, of_zeros(batch)),
        "ends: targets of id 0 do not count as others"),
    "zero head, last target": (lambda batch: without_last(batch, of_zeros(batch)),
        "last slot: the last slot of a row does not count"),
}  # fmt: skip


def faults_of(loss: Any, batches: Any = None, **asked: Any) -> str:
    """What is said of a trainer that does not do what its batches say."""
    with pytest.raises(AssertionError, match="does not do what its batches say") as caught:
        check_trainer(loss, loader() if batches is None else batches, **asked)
    return str(caught.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault: str) -> None:
    loss, sentence = FAULTS[fault]
    check, _, words = sentence.partition(": ")
    said = faults_of(loss, vocab_size=VOCAB, leave_out={*NAMES} - {check})
    assert words in said
    assert said.count("\n") == 1


def with_head(batch: Any, times: float) -> float:
    """Of a model whose output layer is so many times as large."""
    return mean(nats(times * logits(batch), batch), batch["loss_mask"])


def bigrams(batch: Any) -> float:
    """No attention."""
    alone = np.broadcast_to(np.eye(24, dtype=bool), (len(batch["inputs"]), 24, 24))
    return mean(costs(batch, seen=alone, positions=batch["positions"] * 0), batch["loss_mask"])


def in_bfloat16(batch: Any) -> float:
    return mean(nats(logits(batch).bfloat16().double(), batch), batch["loss_mask"])


def sum_and_count(batch: Any) -> Any:
    mask = torch.tensor(batch["loss_mask"])
    return (costs(batch) * mask).sum(), mask.sum()


CHANCES = "nats: the chances of 64 targets"
EACH = f"{CHANCES} of a slot add to 1"
ZERO_HEAD = [
    "slots: not tested: no input moves the loss, as where the output layer begins at zero",
    "last slot: the last slot of a row counts",
    "mean: not tested: all targets have the same loss, as where the output layer begins at",
]
NO_CONTEXT = "documents: no document moves another's loss, and no token a later one's of its own"
ALIKE = "mean: each target has the same share of the loss"
RIGHT: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "a mean": (right, {}, [EACH]),
    "sum and count": (sum_and_count, {}, [EACH]),
    "the loss of each slot": (costs, {}, [EACH]),
    "zero head": (partial(with_head, times=0), {}, [*ZERO_HEAD, EACH]),
    "a sure head": (partial(with_head, times=20), {"tolerance": 1e-3}, [CHANCES]),
    "no context": (bigrams, {}, [NO_CONTEXT]),
    "label smoothing": (smoothed, {}, ["nats: the loss has label smoothing of 0.2"]),
    "logits in bfloat16": (in_bfloat16, {"tolerance": 1e-2}, [ALIKE, CHANCES]),
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


VOCABULARIES: list[Any] = [
    (1000, 0.3, "nats: the chances of 1,000 targets of a slot add to about (by 64 of them) "),
    (64, 0.3, "nats: exp(-loss) of all targets of a slot adds to"),
    (1000, 9, "nats: not tested: the chances of 1,000 targets of a slot cannot be told from 6"),
    (50_000, 0.3, "as if -3.8"),
]


@pytest.mark.parametrize(("vocab_size", "deviation", "sentence"), VOCABULARIES)
def test_large_vocabularies_are_estimated(vocab_size: int, deviation: float, sentence: str) -> None:
    """Of a model of 1,000 ids, of which 64 are in the data."""
    logits = np.random.default_rng(0).normal(0, deviation, 50_000)
    each = np.log(np.exp(logits[:1000]).sum()) - logits

    def loss(batch: Any) -> Any:
        return each[batch["targets"]][batch["loss_mask"]].mean()

    asked = {"leave_out": set(NAMES) - {"nats"}, "vocab_size": vocab_size}
    try:
        (says,) = check_trainer(loss, loader(), **asked)
    except AssertionError as error:
        says = str(error)
    assert sentence in says


WEIGHTS = [np.random.default_rng(n).uniform(0.5, 2, len(text)) for n, text in enumerate(TEXTS)]


def by_weights(batch: Any, name: str = "target_weight", divisor: str = "weights") -> float:
    weights = torch.tensor(batch[name] * batch["loss_mask"])
    by = weights if divisor == "weights" else torch.tensor(batch["loss_mask"])
    return float((costs(batch) * weights).sum() / by.sum())


def test_weights_of_targets_count() -> None:
    documents = jaxdata.ArrayDocuments(TEXTS, side={"weight": WEIGHTS})
    extras = ("weight", "target_weight")
    rows = jaxdata.pack(documents, seq_len=24)
    weighted = jaxdata.Loader(rows, batch_size=4, prefetch=0, extras=extras)
    for divisor in ("weights", "targets"):
        found = check_trainer(partial(by_weights, divisor=divisor), weighted, vocab_size=VOCAB)
        assert found[-1] == "weights: a target whose target_weight is 2 counts twice"
    for wrong in (right, partial(by_weights, name="weight")):
        assert faults_of(wrong, weighted, vocab_size=VOCAB).splitlines()[1:] == [
            "weights: a target whose target_weight is 2 counts 1 times one of 1: multiply the loss "
            "of each slot by target_weight in that slot (leave_out={'weights'} if it is for "
            "something else)"
        ]
    assert len(check_trainer(right, weighted, leave_out={"weights"})) == len(NAMES)


def test_ids_of_another_tools_data_are_not_known(tmp_path: Path) -> None:
    jaxdata.export(DOCUMENTS, tmp_path / "m", format="megatron")
    dataset = jaxdata.open_dataset(f"megatron:{tmp_path / 'm'}")
    rows = jaxdata.pack(dataset.source("train", "m"), seq_len=24)
    *_, said = check_trainer(right, jaxdata.Loader(rows, batch_size=4))
    assert "at most 1; give vocab_size to comp" in said


def test_a_check_can_be_left_out() -> None:
    def leaks(batch: Any) -> float:
        return mean(costs(batch, seen=everything_seen(batch)), batch["loss_mask"])

    assert len(check_trainer(leaks, loader(), leave_out={"documents", "by hand"})) == 8
    with pytest.raises(InputError, match=r"leave_out=\['leaks'\]: the checks are repeats, masks,"):
        check_trainer(leaks, loader(), leave_out={"leaks"})
    alone = check_trainer(right, loader(batch_size=1), vocab_size=VOCAB)
    assert [each for each in alone if "not tested" in each] == [
        "padding: not tested: a batch of one row has none beside it; `by hand` has some in the row"
    ]


def test_rows_that_cannot_be_asked_about_are_refused() -> None:
    pairs = jaxdata.pairs(*[jaxdata.ArrayDocuments([[1, 2, 0]], [[0, 1, 1]])] * 2, seq_len=8)
    with pytest.raises(InputError, match=r"these rows have chosen_inputs, .*: expected packed"):
        check_trainer(right, jaxdata.Loader(pairs, batch_size=1))
    with pytest.raises(InputError, match=r"an array of shape \(4,\): expected a number, \(sum, co"):
        check_trainer(lambda batch: batch["inputs"][:, 0], loader())


class Updates:
    """Updates of a model of bigrams, worked out in numpy; faults are those of trainers seen."""

    def __init__(self, fault: str = "", *, learns: float | None = None) -> None:
        self.fault, self.learns = fault, learns
        self.weights = np.random.default_rng(0).normal(size=(VOCAB, VOCAB))

    def summed(self, batch: Any) -> tuple[Any, int]:
        """The gradient of the sum of the losses, and the number of targets."""
        at = batch["loss_mask"]
        inputs, targets = batch["inputs"][at], batch["targets"][at]
        chances = np.exp(self.weights[inputs])
        chances /= chances.sum(1, keepdims=True)
        chances[np.arange(len(targets)), targets] -= 1
        gradient = np.zeros_like(self.weights)
        np.add.at(gradient, inputs, chances)
        return gradient, len(targets)

    def __call__(self, batches: Any) -> Any:
        if self.fault == "last dropped":
            batches = batches[:-1] or batches
        if self.fault == "first only":
            batches = batches[:1]
        sums, counts = zip(*map(self.summed, batches), strict=True)
        means = [one / max(count, 1) for one, count in zip(sums, counts, strict=True)]
        right = sum(sums) / sum(counts)
        wrong = {"mean of means": np.mean(means, 0), "sum of means": np.sum(means, 0)}
        wrong["divided by micro-batches"] = right / len(batches)
        wrong["noise"] = right + np.random.default_rng().normal(size=right.shape)
        gradient = wrong.get(self.fault, right)
        if self.learns is None:
            return gradient
        return {"weights": (self.weights - self.learns * gradient).astype(np.float32)}


@pytest.mark.parametrize("learns", [None, 1.0])
def test_updates_of_micro_batches_pass(learns: float | None) -> None:
    (says,) = check_trainer(right, loader(), update=Updates(learns=learns), leave_out=NAMES)
    assert says.startswith("micro-batches: updates of micro-batches are those of one batch, with r")
    assert "1, 10 and " in says


UPDATES: list[Any] = [
    ("last dropped", ": the last one is dropped. Add up the losses of all targets of an upda"),
    ("first only", ": only the first one is read. Add"),
    ("mean of means", ": it is the mean of their means. Add"),
    ("sum of means", ": their means are added up. Add"),
    ("divided by micro-batches", ": the two differ by "),
    ("noise", "micro-batches: two updates of the same batch differ: begin each with the same"),
]


@pytest.mark.parametrize(("fault", "sentence"), UPDATES)
def test_each_fault_of_an_update_is_named(fault: str, sentence: str) -> None:
    assert sentence in faults_of(right, update=Updates(fault), leave_out=NAMES)
    if fault != "noise":
        faults_of(right, update=Updates(fault, learns=1e-3), leave_out=NAMES)


def test_accumulation_by_optax_is_a_mean_of_means() -> None:
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(VOCAB, VOCAB)))

    def loss(weights: Any, batch: Any) -> Any:
        each = optax.softmax_cross_entropy_with_integer_labels(
            weights[batch["inputs"]], batch["targets"]
        )
        return (each * batch["loss_mask"]).sum() / batch["loss_mask"].sum()

    def update(batches: Any) -> Any:
        steps = optax.MultiSteps(optax.sgd(1e-2), len(batches))
        now, state = weights, steps.init(weights)
        for batch in batches:
            changes, state = steps.update(jax.grad(loss)(weights, batch), state)
            now = optax.apply_updates(now, changes)
        return now

    assert "it is the mean of their means" in faults_of(right, update=update, leave_out=NAMES)


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
        if self.fault == "cannot begin":
            raise ValueError("no devices")
        if state is not None and self.fault == "dies":
            raise TypeError("'Loader' object cannot be skipped")
        if state is not None and self.fault != "forgets":
            one.set_state(state)
        if self.fault == "elastic":
            one = loader(shard=(0, 2)) if state else one
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


RUNS: list[Any] = [
    ("shuffles", "order: the trainer trains on other batches than the loader gives, or in an"),
    ("cannot begin", "order: ValueError: no devices"),
    ("dies", "resuming: TypeError: 'Loader' object cannot be"),
    ("forgets", "resuming: 3 steps, and the rest after resuming, are not the steps of one run"),
    ("elastic", "resuming: 3 steps, and the rest after resuming, are not the steps of one run"),
    ("empty", "and said nothing: a pass has"),
]


@pytest.mark.parametrize(("fault", "sentence"), RUNS)
def test_each_fault_of_a_run_is_named(fault: str, sentence: str) -> None:
    assert sentence in faults_of(right, loader(reiterable=True), run=Trainer(fault))


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
    assert first == f"evaluated rows: each of {rows} rows is evaluated once, and none is trained on"
    assert second.startswith("evaluated loss: the loss of the evaluation is the mean over its ")
    with pytest.raises(InputError, match="evaluate= needs evaluation=, the loader that it evalua"):
        check_trainer(right, loader(), evaluate=lambda: (0, []), leave_out=NAMES)


def packed_otherwise() -> Any:
    rows = jaxdata.pack(DOCUMENTS, seq_len=24, strategy="concat")
    return jaxdata.Loader(rows, batch_size=4, prefetch=0)


EVALUATIONS: list[Any] = [
    (loader, held_out, "evaluated rows are rows that it trains on: evaluate on a loader of a"),
    (packed_otherwise, packed_otherwise, "the evaluation is of documents that it trains on, "),
    (lambda: list(held_out())[:-1], held_out, "1 are missing, and 0 are there that are not "),
    (lambda: [*held_out(), next(held_out())], held_out, "0 are missing, and 4 are there that"),
    (held_out, held_out, "evaluated loss: the loss of the evaluation is reported as "),
]


@pytest.mark.parametrize(("batches", "evaluation", "sentence"), EVALUATIONS)
def test_each_fault_of_an_evaluation_is_named(batches: Any, evaluation: Any, sentence: str) -> None:
    by_batches = sentence.startswith("evaluated loss")

    def evaluate() -> Any:
        return evaluated(list(batches()), by_batches=by_batches)

    asked = {"evaluate": evaluate, "evaluation": evaluation(), "leave_out": NAMES}
    assert sentence in faults_of(right, **asked)


MODULE = """
import numpy as np
def right(batch):
    nats = np.abs(batch["tokens"] * 0.3 - batch["labels"]) + 1.1
    return (nats * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
def wrong(batch):
    return right(batch) + batch["tokens"].mean()
def whole(batches):
    return [sum(float(right(b)) * b["loss_mask"].sum() for b in batches)
            / sum(b["loss_mask"].sum() for b in batches) * np.ones(3)]
def means(batches):
    return [np.mean([right(b) for b in batches]) * np.ones(3)]
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = {"batch_size": 2, "layout": "megatron"}
    path = run(tmp_path, {"a": [30, 20, 9]}, pack={"seq_len": 16}, loader=layout)
    (tmp_path / "toy_trainer.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    for named, status, says in (
        ("right", 0, "10 checks of the trainer hold"),
        ("wrong", 1, "FAILED  documents documents of a row see each other"),
        ("right,whole", 0, "11 checks of the trainer hold"),
        ("right,means", 1, "it is the mean of their means"),
    ):
        asked = ["verify", path, "--trainer", f"toy_trainer:{named}"]
        assert says in commands.run(*asked, status=status).stdout
    said = commands.run("verify", path, "--trainer", "toy_trainer:none", status=1).stderr
    assert "toy_trainer.py has no function 'none'" in said
