"""check_trainer: right trainers pass; each fault is named in a sentence."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import jaxdata
import jaxdata.torch
from jaxdata.cli import main
from jaxdata.errors import InputError
from jaxdata.testing import check_trainer, distinct_documents, write_dataset
from jaxdata.train.loss import cross_entropy, mean_loss
from jaxdata.train.model import ModelSettings, forward, init_params
from tests.feed.test_layouts import MODEL, VOCAB, nats, same_segment

LENGTHS = np.random.default_rng(0).integers(2, 20, 60)
TEXTS = [np.random.default_rng(n).integers(1, VOCAB, n) for n in LENGTHS.tolist()]
ROWS = jaxdata.pack(jaxdata.ArrayDocuments(TEXTS), seq_len=24)
NAMES = ["repeats", "masks", "padding", "slots", "last slot", "documents", "by hand"]


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


@pytest.mark.parametrize("rows", [4, 1])
@pytest.mark.parametrize("form", ["mean", "sum and count", "slots", "jax"])
def test_a_right_trainer_passes(rows: int, form: str) -> None:
    def loss(batch: Any) -> Any:
        each, mask = costs(batch), torch.tensor(batch["loss_mask"])
        forms = {"sum and count": ((each * mask).sum(), mask.sum()), "slots": each}
        return {**forms, "mean": right(batch), "jax": jnp.float32(right(batch))}[form]

    found = check_trainer(loss, loader(batch_size=rows))
    assert [each.split(":")[0] for each in found] == NAMES


def llama(**settings: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, num_attention_heads=2, max_position_embeddings=24, **small, **settings
    )
    return transformers.LlamaForCausalLM(config).eval()


def of_model(model: Any, **over: Any) -> Any:
    @torch.no_grad()
    def loss(batch: Any) -> Any:
        return model(**{k: v for k, v in {**batch, **over}.items() if v is not None}).loss

    return loss


def hf_loader() -> Any:
    return jaxdata.torch.Loader(ROWS, batch_size=4, layout="hf", prefetch=0)


def test_transformers_passes_as_the_layout_has_it() -> None:
    assert len(check_trainer(of_model(llama()), hf_loader())) == len(NAMES)


def megatron(batch: Any, *, masked: bool) -> float:
    seen = ~batch["attention_mask"][:, 0] if masked else same_segment(np.ones_like(batch["tokens"]))
    each = nats(MODEL(batch["tokens"], batch["position_ids"], seen), batch["labels"]).detach()
    return mean(each, batch["loss_mask"] > 0)


def test_the_trainer_that_comes_with_jaxdata_passes() -> None:
    settings = ModelSettings(layers=1, width=32, heads=2)
    params = init_params(jax.random.key(0), settings, VOCAB)

    @jax.jit
    def loss(batch: Any) -> Any:
        each = cross_entropy(forward(params, batch, settings), batch["targets"])
        return mean_loss(each, batch["loss_mask"])[0]

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    check_trainer(loss, loader(sharding=device), tolerance=1e-3)


def test_megatrons_layout_passes_with_its_mask() -> None:
    check_trainer(lambda batch: megatron(batch, masked=True), loader(layout="megatron"))


def shifted_again(batch: Any) -> float:
    logits = MODEL(batch["inputs"], batch["positions"], same_segment(batch["segment_ids"]))
    targets = torch.tensor(np.where(batch["loss_mask"], batch["targets"], -100)).long()
    return float(functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()))


def uncausal(batch: Any) -> float:
    ids = batch["segment_ids"]
    return mean(costs(batch, seen=ids[:, :, None] == ids[:, None]), batch["loss_mask"])


def along_the_row(batch: Any) -> float:
    slots = np.broadcast_to(np.arange(24), batch["positions"].shape)
    return mean(costs(batch, positions=slots), batch["loss_mask"])


def mean_of_rows(batch: Any) -> float:
    mask = torch.tensor(batch["loss_mask"])
    each = (costs(batch) * mask).sum(1) / mask.sum(1).clamp(1)
    return float(each[mask.any(1)].mean())


class Dropped:
    """Other random weights at each call."""

    def __call__(self, batch: Any) -> float:
        return float((costs(batch) * torch.rand(batch["inputs"].shape)).mean())


FAULTS = {
    "leak": (
        lambda batch: mean(costs(batch, seen=everything_seen(batch)), batch["loss_mask"]),
        "documents: documents of a row see each other: other tokens in the other segments move",
    ),
    "padding in the mean": (
        lambda batch: (costs(batch) * torch.tensor(batch["loss_mask"])).sum() / 96,
        "padding: padding counts: the loss is",
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
    "shifted twice": (shifted_again, "slots: the loss of a slot does not depend on its input: tar"),
    "not causal": (uncausal, "slots: slots see tokens after them: other ones move the loss from"),
    "positions": (along_the_row, "by hand: the loss of 5 documents in 2 rows is"),
    "mean of rows": (mean_of_rows, "by hand: the loss of 5 documents in 2 rows is"),
    "dropout": (Dropped(), "repeats: the same batch has the loss"),
    "no number": (lambda batch: float("nan"), "repeats: the loss of a batch with targets is nan"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(fault: str) -> None:
    loss, sentence = FAULTS[fault]
    with pytest.raises(AssertionError, match="does not do what its batches say") as caught:
        check_trainer(loss, loader())
    assert sentence in str(caught.value)


def test_a_cache_that_leaks_is_named() -> None:
    with pytest.raises(AssertionError, match=r"see each other.*in transformers also use_cache=Fal"):
        check_trainer(of_model(llama(), use_cache=True), hf_loader())


def test_columns_that_the_trainer_drops_are_named() -> None:
    with pytest.raises(
        AssertionError, match=r"last slot .*\(remove_unused_columns=False\)"
    ) as said:
        check_trainer(of_model(llama(), shift_labels=None), hf_loader())
    assert "documents:" not in str(said.value)


def test_megatrons_layout_without_its_mask_is_named() -> None:
    bare = loader(layout={"megatron": {"attention_mask": False}})
    with pytest.raises(AssertionError, match="cu_seqlens of the layout to attention"):
        check_trainer(lambda batch: megatron(batch, masked=False), bare)


def test_a_check_can_be_left_out() -> None:
    leaks = FAULTS["leak"][0]
    assert len(check_trainer(leaks, loader(), leave_out={"documents", "by hand"})) == 5
    with pytest.raises(InputError, match=r"leave_out=\['leaks'\]: the checks are repeats, masks,"):
        check_trainer(leaks, loader(), leave_out={"leaks"})


def test_rows_that_cannot_be_asked_about_are_refused() -> None:
    pairs = jaxdata.pairs(*[jaxdata.ArrayDocuments([[1, 2, 0]], [[0, 1, 1]])] * 2, seq_len=8)
    with pytest.raises(InputError, match=r"these rows have chosen_inputs, .*: expected packed"):
        check_trainer(right, jaxdata.Loader(pairs, batch_size=1))
    with pytest.raises(InputError, match=r"an array of shape \(4,\): expected a number, \(sum, co"):
        check_trainer(lambda batch: batch["inputs"][:, 0], loader())


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
    assert [each.split(":")[0] for each in found[7:]] == ["order", "resuming", "passes"]
    assert found[8].endswith("3 + 3 steps resumed are the 6 steps of one run")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("shuffles", "order: the trainer trains on other batches than the loader gives, or in an"),
        ("dies", "resuming: the trainer does not resume: TypeError: 'Loader' object cannot be"),
        ("forgets", "resuming: 3 steps, and the rest after resuming, are not the steps of one run"),
        ("elastic", "resuming: 3 steps, and the rest after resuming, are not the steps of one run"),
        ("empty", "and said nothing: a pass has"),
    ],
)
def test_each_fault_of_a_run_is_named(fault: str, sentence: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_trainer(right, loader(reiterable=True), run=Trainer(fault))
    assert sentence in str(caught.value)


MODULE = """
import numpy as np
def right(batch):
    nats = np.abs(batch["tokens"] * 0.3 - batch["labels"])
    return (nats * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
def wrong(batch):
    return right(batch) + batch["tokens"].mean()
"""


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "d", {"train/a": distinct_documents([30, 20, 9])})
    (tmp_path / "toy_trainer.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    data = ["--dataset", str(tmp_path / "d"), "--pack.seq_len", "16", "--loader.layout", "megatron"]
    for command, name, code in (("check", "right", 0), ("selftest", "wrong", 1)):
        config = ["--config", "pretrain", *data, "--loader.batch_size", "2"]
        with pytest.raises(SystemExit) as ended:
            main([command, "--trainer", f"toy_trainer:{name}", *config])
        printed = capsys.readouterr().out
        assert ended.value.code == code
        assert ("7 checks of the trainer hold" in printed) == (not code)
        assert ("FAILED  documents documents of a row see each other" in printed) == bool(code)
    with pytest.raises(SystemExit):
        main(["selftest", "--trainer", "toy_trainer:none", *config])
    assert "--trainer 'toy_trainer:none': toy_trainer has no 'none'" in capsys.readouterr().err
