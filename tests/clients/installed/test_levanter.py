"""Levanter's own trainer, Llama, data loader and checkpoints on the rows of a config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

import jaxdata
from jaxdata.clients import levanter
from jaxdata.testing import check_trainer
from tests.clients.hand import mean_by_hand
from tests.clients.installed.promises import Promises, Steps, held, join_jax, needs
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB, config_of

needs("levanter.trainer", "levanter")
import haliax as hax  # noqa: E402 - after what it needs was found
from levanter.checkpoint import CheckpointerConfig  # noqa: E402
from levanter.layers.attention import AttentionMask  # noqa: E402
from levanter.models.llama import LlamaConfig  # noqa: E402
from levanter.models.lm_model import LmExample  # noqa: E402
from levanter.tracker import NoopConfig  # noqa: E402
from levanter.trainer import Trainer, TrainerConfig  # noqa: E402

LLAMA = LlamaConfig(
    max_seq_len=SEQ_LEN + 1,
    hidden_dim=32,
    intermediate_dim=32,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    scan_layers=False,
    gradient_checkpointing=False,
)


def loss_of(model: Any, example: Any, *, key: Any = None) -> Any:
    return model.compute_next_token_loss(example, key=key)


def model() -> Any:
    return LLAMA.build(hax.Axis("vocab", VOCAB), key=jax.random.PRNGKey(0))


@hax.named_jit
def logits(one: Any, tokens: Any) -> Any:
    """Of a document in a row of its own."""
    named = hax.named(tokens[0], LLAMA.max_Pos.resize(SEQ_LEN))
    return one(named, AttentionMask.causal()).array[None]


def noted(loader: Any, seen: Steps) -> Iterator[Any]:
    """Batches, whose tokens are noted."""
    for batch in loader:
        seen.tokens.append(held(batch.tokens.array))
        yield batch


def train(run: Any, folder: Path, steps: int, native: Any = None) -> Steps:
    config = TrainerConfig(
        id="run",
        tracker=NoopConfig(),
        train_batch_size=ROWS,
        num_train_steps=steps,
        log_jaxprs=False,
        log_xla_hlo=False,
        checkpointer=CheckpointerConfig(str(folder), save_interval=None, keep=None),
    )
    seen = Steps()

    def work_out(one: Any) -> None:
        if native is not None and len(seen.by_hand) < steps:
            found = mean_by_hand(lambda tokens, *_: logits(one, tokens), next(native))
            seen.by_hand.append(found)

    with Trainer(config, optax.adam(1e-2), loss_of) as trainer:
        state = trainer.initial_state(jax.random.PRNGKey(0), model_init=model)
        data = levanter.examples(run, LLAMA.max_Pos, vocab_size=VOCAB)
        loader = trainer.data_loader(data).iter_from_step(state.step)
        work_out(state.model)
        for info in trainer.training_steps(state, noted(loader, seen)):
            seen.losses.append(info.loss)
            work_out(info.state.model)
        trainer.run_hooks(info, force=True)  # as `trainer.train` ends: it saves
    return seen


def rank(number: int, ranks: int, port: int, run: Any, folder: Path) -> Steps:
    join_jax(number, ranks, port)
    return train(run, folder, 6)


class TestLevanter(Promises):
    train, rank = staticmethod(train), staticmethod(rank)

    @pytest.fixture(scope="class")
    def data(self, text: Path) -> dict[str, Any]:
        return {**config_of(text), "pack": {"strategy": "concat", "seq_len": SEQ_LEN}}

    def test_check_trainer_passes(self, data: Any) -> None:
        one = model()

        @hax.named_jit
        def loss(tokens: Any, mask: Any, ids: Any) -> Any:
            """Of rows one by one: the sum, and the number of targets."""
            named = (hax.named(array, LLAMA.max_Pos) for array in (tokens, mask, ids))
            tokens, mask, ids = named
            example = LmExample.causal(tokens, loss_weight=mask, segment_ids=ids)
            return one.compute_next_token_loss(example, reduction=None).array

        def loss_of_batch(batch: Any) -> Any:
            rows = [
                {name: array[k] for name, array in batch.items()}
                for k in range(len(batch["inputs"]))
            ]
            return np.stack([loss(*levanter.tokens_of(row)) for row in rows])[:, :SEQ_LEN]

        check_trainer(loss_of_batch, jaxdata.load(data))
