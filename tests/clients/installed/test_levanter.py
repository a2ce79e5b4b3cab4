"""Levanter's own trainer, Llama, data loader and checkpoints on the rows of a config."""

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
from tests.clients.installed.promises import Promises, Steps, held, join_jax, needs
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB, config_of, mean_by_hand

needs("levanter.trainer", "levanter")
import haliax as hax  # noqa: E402 - after what it needs was found
from levanter.checkpoint import CheckpointerConfig  # noqa: E402
from levanter.layers.attention import AttentionMask  # noqa: E402
from levanter.models.llama import LlamaConfig  # noqa: E402
from levanter.models.lm_model import LmExample  # noqa: E402
from levanter.tracker import NoopConfig  # noqa: E402
from levanter.trainer import Trainer, TrainerConfig  # noqa: E402

SIZES = {"max_seq_len": SEQ_LEN + 1, "hidden_dim": 32, "intermediate_dim": 32, "num_layers": 1}
SIZES |= {"num_heads": 2, "num_kv_heads": 1}
LLAMA = LlamaConfig(**SIZES, scan_layers=False, gradient_checkpointing=False)


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


def settings(folder: Path, steps: int, **more: Any) -> TrainerConfig:
    saves = CheckpointerConfig(str(folder), save_interval=None, keep=None)
    given = {"id": "run", "train_batch_size": ROWS, "num_train_steps": steps, "checkpointer": saves}
    given |= {"tracker": NoopConfig(), "log_jaxprs": False, "log_xla_hlo": False}
    return TrainerConfig(**given, **more)


def train(run: Any, folder: Path, steps: int, native: Any = None) -> Steps:
    config, seen = settings(folder, steps), Steps()

    def work_out(one: Any) -> None:
        if native is not None and len(seen.by_hand) < steps:
            found = mean_by_hand(lambda tokens, *_: logits(one, tokens), next(native))
            seen.by_hand.append(found)

    with Trainer(config, optax.adam(1e-2), loss_of, add_default_hooks=False) as trainer:
        state = trainer.initial_state(jax.random.PRNGKey(0), model_init=model)
        data = levanter.examples(run, LLAMA.max_Pos, vocab_size=VOCAB)
        loader = trainer.data_loader(data).iter_from_step(state.step)
        work_out(state.model)
        for info in trainer.training_steps(state, noted(loader, seen)):
            seen.losses.append(info.loss)
            work_out(info.state.model)
        saves = config.checkpointer.create(trainer.run_id)  # as the hook that is Levanter's default
        saves.on_step(tree=info.state.saveable_state, step=info.step, force=True)
        saves.wait_until_finished()
    return seen


def rank(number: int, ranks: int, port: int, run: Any, folder: Path) -> Steps:
    join_jax(number, ranks, port)
    return train(run, folder, 6)


class TestLevanter(Promises):
    train, rank = staticmethod(train), staticmethod(rank)

    @pytest.fixture(scope="class")
    def data(self, text: Path) -> dict[str, Any]:
        return {**config_of(text), "pack": {"strategy": "concat", "seq_len": SEQ_LEN}}

    def test_micro_batches_have_the_gradient_of_the_batch(
        self, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With the client's loss; Levanter's own is the mean of their means."""
        plain = levanter.tokens_of

        def with_fewer_targets(row: Any) -> Any:
            """As documents with masks have them."""
            tokens, mask, ids = plain(row)
            return tokens, mask * (np.arange(len(mask)) < row["inputs"].sum() % SEQ_LEN), ids

        monkeypatch.setattr(levanter, "tokens_of", with_fewer_targets)

        def updated(loss: Any, per_device: int) -> Any:
            config = settings(tmp_path, 1, per_device_parallelism=per_device)
            with Trainer(config, optax.sgd(1.0), loss, add_default_hooks=False) as trainer:
                state = trainer.initial_state(jax.random.PRNGKey(0), model_init=model)
                before = [np.array(each) for each in jax.tree.leaves(state.model)]
                loader = trainer.data_loader(levanter.examples(data, LLAMA.max_Pos))
                (info,) = trainer.training_steps(state, loader.iter_from_step(0))
                after = jax.tree.leaves(info.state.model)
            return np.concatenate([(a - b).ravel() for a, b in zip(after, before, strict=True)])

        def off(loss: Any) -> float:
            whole = updated(loss, -1)
            return float(np.linalg.norm(updated(loss, 1) - whole) / np.linalg.norm(whole))

        assert off(levanter.loss) < 1e-5  # they are float32
        assert off(loss_of) > 0.01

    def test_check_trainer_passes(self, data: Any) -> None:
        """But for what needs targets that are no next token: Levanter has none."""
        one = model()

        @hax.named_jit
        def costs(*arrays: Any) -> Any:
            """The loss of each slot of a row."""
            tokens, mask, ids = (hax.named(array, LLAMA.max_Pos) for array in arrays)
            example = LmExample.causal(tokens, loss_weight=mask, segment_ids=ids)
            return one.compute_next_token_loss(example, reduction=None).array

        def loss(batch: Any) -> Any:
            follows = np.ones_like(batch["loss_mask"])
            follows[:, :-1] = batch["targets"][:, :-1] == batch["inputs"][:, 1:]
            follows[:, :-1] &= batch["segment_ids"][:, :-1] == batch["segment_ids"][:, 1:]
            batch = {**batch, "loss_mask": batch["loss_mask"] & follows}
            rows = [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]
            total = sum(float(costs(*levanter.tokens_of(row)).sum()) for row in rows)
            return total, batch["loss_mask"].sum()

        check_trainer(loss, jaxdata.load(data), leave_out={"slots", "by hand"})
