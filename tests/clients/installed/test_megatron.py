"""Megatron-Core's own ranks, model, schedule, gradients and checkpoints on the rows of a config.

Its wheel has no `megatron.training`: its arguments are played here. Attention by `cu_seqlens` needs
Transformer Engine, and that a GPU.
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from jaxdata.base.processes import held_port
from jaxdata.clients import megatron
from jaxdata.testing import check_trainer
from tests.clients.installed.promises import Promises, Steps, needs
from tests.clients.test_megatron import ARGUMENTS
from tests.clients.tiny import ROWS, SEQ_LEN, mean_by_hand

needs("megatron.core", "megatron")
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import initialize_rng_tracker  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402


def join(rank: int, ranks: int, port: int) -> None:
    """Make this process a data-parallel rank, on a CPU: Megatron asks for its GPU by number."""
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    parallel_state.initialize_model_parallel()
    initialize_rng_tracker(inference_rng_tracker=True)  # the one that needs no GPU


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("current_device", "synchronize"):
            patch.setattr(torch.cuda, name, None)  # to have the old one back
        with held_port() as port:
            join(0, 1, port)
            yield
            parallel_state.destroy_model_parallel()
            torch.distributed.destroy_process_group()


class OnCpu(TorchFunctionMode):
    """The schedule counts tokens in a tensor that it makes on "cuda", by name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if given.get("device") == "cuda":
            given["device"] = "cpu"
        return func(*args, **given)


def model() -> Any:
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        masked_softmax_fusion=False,
        use_cpu_initialization=True,
        calculate_per_token_loss=True,
        finalize_model_grads_func=finalize_model_grads,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=ARGUMENTS["padded_vocab_size"],
        max_sequence_length=SEQ_LEN,
    )


def build(run: Any, **arguments: Any) -> Any:
    """The batches of a provider, as `pretrain` asks for them."""
    name, args = "megatron.training", SimpleNamespace(**{**ARGUMENTS, **arguments})
    sys.modules[name] = ModuleType(name)
    sys.modules[name].get_args = lambda: args  # type: ignore[attr-defined]
    return megatron.provider(run)((6 * ROWS, ROWS, 0))[0]


def losses_of(one: Any, batch: Any) -> Any:
    """The loss of each slot, as pretrain_gpt.py asks its model."""
    given = batch["tokens"], batch["position_ids"], batch["attention_mask"]
    return one(*given, labels=batch["labels"]) * batch["loss_mask"]


def distributed(one: Any) -> Any:
    return DistributedDataParallel(one.config, DistributedDataParallelConfig(), one)


def gradients(ranked: Any, batches: Any, count: int) -> float:
    """Those of a step of so many micro-batches, as its schedule leaves them; its loss."""
    sums = torch.zeros(2, dtype=torch.float64)

    def loss_func(mask: torch.Tensor, losses: torch.Tensor) -> Any:
        total = losses.sum()
        sums.add_(torch.stack([total.detach(), mask.sum()]))
        return total, mask.sum().to(torch.int), {}

    def forward_step(batches: Any, one: Any) -> Any:
        batch = next(batches)
        return losses_of(one, batch), partial(loss_func, batch["loss_mask"])

    ranked.zero_grad_buffer()
    with OnCpu():
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=ranked,
            num_microbatches=count,
            seq_length=SEQ_LEN,
            micro_batch_size=ARGUMENTS["micro_batch_size"],
        )
    torch.distributed.all_reduce(sums, group=parallel_state.get_data_parallel_group())
    return float(sums[0] / sums[1])


def update(ranked: Any, micro_batches: Any) -> float:
    """A step of SGD; its loss."""
    loss = gradients(ranked, iter(micro_batches), len(micro_batches))
    with torch.no_grad():
        for weight in ranked.parameters():
            weight -= 0.5 * weight.main_grad
    return loss


def by_hand(one: Any, batch: Any) -> float:
    unseen = ~torch.ones(SEQ_LEN, SEQ_LEN, dtype=torch.bool).tril()[None, None]

    @torch.no_grad()
    def logits(tokens: Any, positions: Any, _: Any) -> Any:
        return one(torch.tensor(tokens), torch.tensor(positions), unseen)

    return mean_by_hand(logits, batch)


def train(run: Any, folder: Path, steps: int, native: Any = None) -> Steps:
    one, seen, saved = model(), Steps(), {"consumed_train_samples": 0}
    done = max((int(each.name) for each in folder.glob("[0-9]*")), default=0)
    if done:
        wanted = {"model": one.sharded_state_dict(), **saved}
        saved = dist_checkpointing.load(wanted, str(folder / f"{done}"))
        one.load_state_dict(saved["model"])
    consumed = saved["consumed_train_samples"]
    state = {"dataloader_save": str(folder / "data"), "iteration": done}
    batches = build(run, consumed_train_samples=consumed, **state)
    ranks, ranked = parallel_state.get_data_parallel_world_size(), distributed(one)
    for _ in range(done, steps):
        if native is not None:
            seen.by_hand.append(by_hand(one, next(native)))
        micro = [next(batches) for _ in range(ROWS // ARGUMENTS["micro_batch_size"] // ranks)]
        seen.losses.append(update(ranked, micro))
        seen.tokens.append(np.stack([batch["tokens"].numpy() for batch in micro]))
    save(one, batches, folder, steps)
    return seen


def save(one: Any, batches: Any, folder: Path, step: int) -> None:
    """A checkpoint of Megatron-Core, and beside it what `--dataloader-save` writes."""
    (folder / f"{step}").mkdir(exist_ok=True)
    saved = {"model": one.sharded_state_dict(), "consumed_train_samples": step * ROWS}
    dist_checkpointing.save(saved, str(folder / f"{step}"))
    data = folder / f"data/iter_{step:07d}/mp_rank_00"
    data.mkdir(parents=True, exist_ok=True)
    number = parallel_state.get_data_parallel_rank()
    state = {"dataloader_state_dict": batches.save_state()}
    torch.save(state, data / f"train_dataloader_dprank{number:03d}.pt")


def rank(number: int, ranks: int, port: int, run: Any, folder: Path) -> Steps:
    join(number, ranks, port)
    return train(run, folder, 6)


class TestMegatron(Promises):
    train, rank = staticmethod(train), staticmethod(rank)

    def test_check_trainer_passes(self, data: Any) -> None:
        one = model()

        @torch.no_grad()
        def loss(batch: Any) -> Any:
            return losses_of(one, batch).sum(), batch["loss_mask"].sum()

        def update(batches: Any) -> list[torch.Tensor]:
            ranked = distributed(model())
            gradients(ranked, iter(batches), len(batches))
            return [each.main_grad for each in ranked.parameters()]

        check_trainer(loss, build(data).loader, update=update)
