"""Tunix, Levanter, nanodo, nanoGPT and nanochat: rows by hand, resumed to the bit, refusals.

Against stand-ins of what those trainers call; `README.md` of the room says when the same was run in
each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import jaxdata
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.clients import levanter, megatron, nanochat, nanodo, torchtitan, tunix
from jaxdata.clients.nanogpt import Data
from jaxdata.config import build_rows, load_config
from tests.clients.tiny import (
    ROWS,
    SEQ_LEN,
    VOCAB,
    Tiny,
    assert_by_hand,
    tensor,
    train,
)

CHAT = SimpleNamespace(get_vocab_size=lambda: VOCAB)


@pytest.fixture
def alone(run: dict[str, Any]) -> dict[str, Any]:
    """A config with a document in each row."""
    return {**run, "pack": {"seq_len": SEQ_LEN, "strategy": "pad"}}


def logits_of(model: Tiny, tokens: torch.Tensor) -> torch.Tensor:
    seen = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    logits: torch.Tensor = model(tokens, torch.arange(tokens.shape[1]), seen)
    return logits


class ChatModel:
    """As nanochat's `GPT.forward`."""

    def __init__(self, model: Tiny) -> None:
        self._model = model

    def __call__(self, tokens: Any, targets: Any, loss_reduction: str = "mean") -> Any:
        logits = logits_of(self._model, tokens).flatten(0, 1)
        return torch.nn.functional.cross_entropy(
            logits, targets.flatten(), ignore_index=-1, reduction=loss_reduction
        )


class NanoGPT:
    """Its loop: the next batch is there before a step ends, and before a checkpoint."""

    def __init__(self, run: Any, rows: int = ROWS) -> None:
        self.data = Data(run, batch_size=rows, block_size=SEQ_LEN)

    def resume(self, state: Any) -> None:
        self.data.resume(state)

    @property
    def state(self) -> Any:
        return self.data.state

    def loss(self, model: Tiny, pair: Any) -> torch.Tensor:
        made: torch.Tensor = self.data.loss(logits_of(model, pair[0]), pair[1])
        return made

    def __iter__(self) -> Iterator[Any]:
        batch = self.data.get_batch("train")
        while True:
            now, batch = batch, self.data.get_batch("train")
            yield now


class NanoChat:
    """Its loop, with its generator of batches and states."""

    def __init__(self, run: Any, rows: int = ROWS) -> None:
        self.run, self.rows, self.state = run, rows, None
        self.resumed: Any = None

    def resume(self, state: Any) -> None:
        self.resumed = state

    def loss(self, model: Tiny, pair: Any) -> torch.Tensor:
        made: torch.Tensor = nanochat.loss(ChatModel(model), *pair)
        return made

    def __iter__(self) -> Iterator[Any]:
        function = nanochat.with_state(self.run)
        given = {"split": "train", "device": "cpu", "resume_state_dict": self.resumed}
        batches = function(CHAT, self.rows, SEQ_LEN, **given)
        *batch, self.state = next(batches)
        printed = [self.state[name] for name in ("epoch", "pq_idx", "rg_idx")]
        assert printed == [1, None, 0 if self.resumed is None else 3 * ROWS]
        while True:
            now = batch
            *batch, self.state = next(batches)
            yield now


@pytest.mark.parametrize("script", [NanoGPT, NanoChat])
def test_scripts_by_hand_and_resumed_to_the_bit(alone: Any, script: Any) -> None:
    def loss_of(model: Tiny, pair: Any) -> torch.Tensor:
        """As the mean by hand, which the client's is not."""
        made: torch.Tensor = script.loss(whole_run, model, pair)
        return made * pair[1].numel() / (pair[1] >= 0).sum()

    whole_run = script(alone)
    whole = assert_by_hand(Tiny(), whole_run, loss_of, jaxdata.load(alone))
    model, first, again = Tiny(), script(alone), script(alone)
    losses = list(train(model, first, loss_of, 3))
    again.resume(json.loads(json.dumps(first.state)))
    assert losses + list(train(model, again, loss_of, 3)) == whole


@pytest.mark.parametrize("script", [NanoGPT, NanoChat])
def test_a_target_weighs_the_same_in_any_micro_batch(alone: Any, script: Any) -> None:
    """The gradient of four micro-batches, as their scripts average them, is that of the batch."""

    def gradient(pairs: Any, count: int, loss_of: Any) -> torch.Tensor:
        model.zero_grad()
        for pair in islice(pairs, count):
            (loss_of(model, pair) / count).backward()
        return torch.cat(
            [grad.flatten() for weight in model.parameters() if (grad := weight.grad) is not None]
        )

    model, small, large = Tiny(), script(alone, ROWS // 4), script(alone)
    whole = gradient(large, 1, large.loss)
    assert torch.allclose(gradient(small, 4, small.loss), whole, rtol=1e-9)
    tokens, targets = next(iter(script(alone)))
    nothing = torch.full_like(targets, -1)
    assert small.loss(model, (tokens, nothing)) == 0  # a process may have filling rows only


@pytest.mark.parametrize("script", [NanoGPT, NanoChat])
def test_a_loss_of_their_own_is_refused(alone: Any, script: Any) -> None:
    pairs = iter(script(alone))
    next(pairs)
    with pytest.raises(InputError, match=r"own loss is the mean .* let its script say loss = "):
        next(pairs)


def test_what_nanogpt_estimates_on_is_still_trained_on(alone: Any) -> None:
    """Its `estimate_loss` asks for batches of "train" too, in one process only."""
    data = Data(alone, batch_size=ROWS, block_size=SEQ_LEN)
    data.get_batch("train")
    state = data.state
    with torch.no_grad():
        estimated = [data.get_batch("train")[0] for _ in range(4)]
    assert data.state == state
    expected = [torch.from_numpy(batch["inputs"]) for batch in islice(jaxdata.load(alone), 4)]
    assert torch.equal(torch.stack(estimated), torch.stack(expected))
    assert torch.equal(data.get_batch("train")[0], expected[1])


def test_evaluation_begins_again(alone: Any) -> None:
    data = Data(alone, batch_size=4, block_size=SEQ_LEN)
    batches = nanochat.without_state(alone)(CHAT, 4, SEQ_LEN, split="val", device="cpu")
    for evaluated in ([data.get_batch("val") for _ in range(10)], list(islice(batches, 10))):
        tokens = [pair[0].tolist() for pair in evaluated]
        assert tokens[:5] == tokens[5:]
        assert [0] * SEQ_LEN not in tokens[0]


def test_documents_see_each_other_only_if_asked(run: Any) -> None:
    given = {"batch_size": ROWS, "block_size": SEQ_LEN}
    with pytest.raises(InputError, match="pack with strategy='pad', or give across_documents=True"):
        [Data(run, **given).get_batch("train") for _ in range(6)]
    crossing = Data(run, **given, across_documents=True)
    assert crossing.get_batch("train")[0].shape == (ROWS, SEQ_LEN)


def test_the_end_of_the_rows_is_said(alone: Any) -> None:
    script = NanoGPT({**alone, "curriculum": [{"rows": 20, "mix": {"pages": 1}}]})
    with pytest.raises(InputError, match="end after step 3: give its sources more epochs"):
        [script.loss(Tiny(), pair) for pair in script]


def test_scripts_refuse_other_lengths_vocabularies_and_states(alone: Any) -> None:
    with pytest.raises(InputError, match=r"nanoGPT's sequence length is 64: set pack"):
        Data(alone, batch_size=ROWS, block_size=64)
    small = SimpleNamespace(get_vocab_size=lambda: 512)
    with pytest.raises(InputError, match="ids below 1,000, but nanochat's vocabulary is 512"):
        nanochat.with_state(alone)(small, ROWS, SEQ_LEN, split="train", device="cpu")
    theirs = {"pq_idx": 1, "rg_idx": 2, "epoch": 1}
    given = {"split": "train", "device": "cpu", "resume_state_dict": theirs}
    with pytest.raises(StateMismatch, match="it lacks 'fingerprint', it lacks 'version'"):
        nanochat.with_state(alone)(CHAT, ROWS, SEQ_LEN, **given)


def test_nanodo(alone: Any, stand_in: Callable[..., Any]) -> None:
    """Its loss takes what `get_in_out` makes of a batch; its checkpoints take grain's iterators."""
    data = stand_in("nanodo.data")
    nanodo.install(alone)

    def loss_of(model: Tiny, batch: Any) -> torch.Tensor:
        tokens, targets, counts = map(tensor, data.get_in_out(batch))
        whole = torch.ones_like(tokens)
        costs = model.costs(tokens, targets, whole.cumsum(-1) - 1, whole)
        return (costs * counts).sum() / counts.sum()

    given = {"batch_size": ROWS, "context_size": SEQ_LEN, "tfds_name": "lm1b"}
    loader = iter(data.py_batched_tfds(split="train", **given))
    whole = assert_by_hand(Tiny(), loader, loss_of, jaxdata.load(alone))
    model, first, again = Tiny(), *(data.py_batched_tfds(split="train", **given) for _ in "ab")
    losses = list(train(model, first, loss_of, 3))
    again.set_state(first.get_state())
    assert losses + list(train(model, again, loss_of, 3)) == whole

    evaluation = data.py_batched_tfds(split="test", **given)
    passes = [[batch.tolist() for batch in islice(evaluation, 2)] for _ in range(2)]
    assert passes[0] == passes[1]
    with pytest.raises(InputError, match="nanodo's context_size is 64"):
        data.py_batched_tfds(split="train", batch_size=ROWS, context_size=64)


class PeftTrainer:
    """What Tunix's has that the client uses; `installed/test_tunix.py` trains with it."""

    def __init__(self, micro: int | None = None, metadata: Any = None, steps: int = 0) -> None:
        self.model = SimpleNamespace(config=SimpleNamespace(vocab_size=VOCAB))
        self.config = SimpleNamespace(gradient_accumulation_steps=micro)
        self.iter_steps = self.train_steps = steps
        self._restored_custom_metadata = metadata
        self.logged: list[tuple[Any, ...]] = []
        self.metrics_logger = SimpleNamespace(log=lambda *each: self.logged.append(each))
        self.metrics_prefix = "p"

    def custom_checkpoint_metadata(self) -> dict[str, Any]:
        return {"global_step": self.train_steps}

    def with_data_hooks(self, hooks: Any) -> None:
        self.hooks = hooks

    def with_gen_model_input_fn(self, function: Any) -> None:
        assert function is tunix.model_input

    def with_loss_fn(self, function: Any) -> None:
        assert function is tunix.loss

    @property
    def next_row(self) -> int:
        """The first row after a resume."""
        row: int = self.custom_checkpoint_metadata()["jaxdata"]["next_row"]
        return row


def test_tunix_goes_on_after_what_was_trained(run: Any) -> None:
    """It fetches a batch before it sees that it is done."""
    trainer = PeftTrainer()
    tunix.attach(trainer, run, log_every=2)
    fetched = []
    for trainer.iter_steps in range(4):
        trainer.train_steps = trainer.iter_steps
        fetched.append(trainer.hooks.load_next_train_batch(trainer))
    assert {each[1] for each in trainer.logged} >= {"data/tokens/pages", "data/epochs/code"}
    assert {each[-1] for each in trainer.logged} == {0, 2}
    assert (trainer.hooks.train.next_row, trainer.next_row) == (4 * ROWS, 3 * ROWS)
    metadata = json.loads(json.dumps(trainer.custom_checkpoint_metadata()))
    assert metadata["global_step"] == 3
    for saved in (metadata, None):  # by the state, and by the number of steps alone
        again = PeftTrainer(metadata=saved, steps=3)
        tunix.attach(again, run)
        batch = again.hooks.load_next_train_batch(again)
        assert np.array_equal(batch["inputs"], fetched[3]["inputs"])
    while again.hooks.load_next_train_batch(again) is not None:
        pass
    passes = []
    for _ in range(2):
        batches = iter(lambda: again.hooks.load_next_eval_batch(again), None)
        passes.append([np.asarray(batch["inputs"]).tolist() for batch in batches])
    assert passes[0] == passes[1]
    assert len(passes[0]) == 3
    again.model.config.vocab_size = 512
    with pytest.raises(InputError, match="ids below 1,000, but the model's vocab_size is 512"):
        tunix.attach(again, run)


def test_levanter_refuses_what_its_loss_would_get_wrong(run: Any) -> None:
    """What `installed/test_levanter.py` trains on has `strategy: concat`."""
    packed = (row for row in build_rows(load_config(run)) if row["segment_ids"].max() > 1)
    with pytest.raises(InputError, match="is a target only: pack with strategy='concat'"):
        levanter.tokens_of(next(packed))
    pos = SimpleNamespace(size=SEQ_LEN + 1)
    skipping = {**run, "loader": {"skip_rows": [[0, 8]]}}
    for config, axis, says in (
        (run, SimpleNamespace(size=SEQ_LEN), r"Levanter's Pos.size - 1 is 191: set pack"),
        (skipping, pos, r"loader\.skip_rows is of a loader, and Levanter has its"),
    ):
        with pytest.raises(InputError, match=says):
            levanter.examples(config, axis)


def test_they_say_what_is_missing(run: Any, missing: None) -> None:
    levanter._examples.cache_clear()
    with pytest.raises(InputError, match="haliax is not installed: pip install marin"):
        levanter.examples(run, SimpleNamespace(size=SEQ_LEN + 1))
    with pytest.raises(InputError, match="nanodo is not installed: see https"):
        nanodo.install(run)
    with pytest.raises(InputError, match="megatron is not installed: see https"):
        megatron.provider(run)((8, 8, 0))
    torchtitan._data_loader.cache_clear()
    with pytest.raises(InputError, match="torchtitan is not installed: pip install torchtitan"):
        torchtitan.dataloader(run)
