"""torchtitan's own trainer, Llama, FSDP and checkpoints on the rows of a config."""

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from jaxdata.clients import torchtitan
from jaxdata.testing import check_trainer
from tests.clients.installed.promises import Promises, Steps, needs
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB, mean_by_hand


def nothing(*_: Any, **__: Any) -> None:
    pass


CPU = SimpleNamespace(current_device=lambda: 0, get_device_name=str, memory_stats=lambda _: {})
CPU.get_device_properties = lambda _: SimpleNamespace(total_memory=1)
CPU.set_device = CPU.synchronize = CPU.empty_cache = CPU.reset_peak_memory_stats = nothing
"""as `torch.cuda`; torchtitan asks for the names and the memory of its devices"""

with pytest.MonkeyPatch.context() as patch:
    patch.setattr("torch._utils._get_available_device_type", lambda: "cpu")
    patch.setattr("torch._utils._get_device_module", lambda _: CPU)
    needs("torchtitan.trainer", "torchtitan")
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.nn.attention.flex_attention import create_mask  # noqa: E402
from torchtitan.components.checkpointer import CheckpointManager  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.components.optimizer import default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.distributed import utils as dist_utils  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402


class Tokenizer(BaseTokenizer):
    """The number of ids, which is all that is asked of it."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()

    def get_vocab_size(self) -> int:
        return VOCAB

    def encode(self, *_: Any, **__: Any) -> list[int]:
        raise NotImplementedError

    decode = encode


def settings(run: Any, folder: Path, ranks: int) -> Any:
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:1]
    sizes = {"local_batch_size": ROWS // ranks, "seq_len": SEQ_LEN, "steps": 6}
    exact = {"mixed_precision_param": "float32", "disable_cuda_graphs": True}
    saves = CheckpointManager.Config(enable=True, interval=3, last_save_model_only=False)
    spread = ParallelismConfig(spmd_backend="partial_dtensor")  # others want a later torch
    given = {"model_spec": spec, "dump_folder": str(folder), "loss": CrossEntropyLoss.Config()}
    given |= {"tokenizer": Tokenizer.Config(), "dataloader": torchtitan.dataloader(run)}
    given |= {"optimizer": default_adamw(lr=1e-2), "metrics": MetricsProcessor.Config(log_freq=1)}
    given |= {"training": TrainingConfig(**sizes, **exact), "checkpoint": saves}
    given |= {"parallelism": spread, "debug": DebugConfig(seed=0), "activation_checkpoint": None}
    return Trainer.Config(**given)


def attend(q: Any, k: Any, v: Any, *, block_mask: Any, **asked: Any) -> tuple[Any, None]:
    """Flex attention, by torchtitan's mask of it: torch has its gradients on GPUs only."""
    seen = create_mask(block_mask.mask_mod, len(q), 1, q.shape[2], k.shape[2], device="cpu")
    given = {"attn_mask": seen, "scale": asked["scale"], "enable_gqa": asked["enable_gqa"]}
    return functional.scaled_dot_product_attention(q, k, v, **given), None


def join(number: int, ranks: int, port: int) -> None:
    """As torchrun starts a process; alone, it finds a port by itself."""
    FlexAttention._compiled_flex_attn = staticmethod(attend)
    dist_utils.set_pg_timeouts = nothing  # it wants a torch after 2.13
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "WORLD_SIZE": f"{ranks}"}
    os.environ.update(where, RANK=f"{number}", LOCAL_RANK=f"{number}")


def logits_of(model: Any, tokens: Any, positions: Any) -> Any:
    """As torchtitan asks its model."""
    seen = model.get_attention_masks(positions=positions)
    return model(tokens, positions=positions, attention_masks=seen)


def by_hand(model: Any, batch: Any) -> float:
    slots = torch.arange(SEQ_LEN)[None]

    @torch.no_grad()
    def logits(tokens: Any, *_: Any) -> Any:
        return logits_of(model, torch.tensor(tokens).long(), slots)

    return mean_by_hand(logits, batch)


class Noted(Trainer):
    """Notes losses as it logs them, those by hand, and what it trains on."""

    def __init__(self, config: Any, stop: int, native: Any) -> None:
        super().__init__(config)
        self.stop, self.native, self.seen = stop, native, Steps()
        for module in self.model_parts[0].modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
        log = self.metrics_processor.log

        def note(step: int, loss: float, *rest: Any, **more: Any) -> None:
            self.seen.losses.append(loss)
            log(step, loss, *rest, **more)

        self.metrics_processor.log = note

    def should_continue_training(self) -> bool:
        return self.step < self.stop

    def train_step(self, batches: Any) -> None:
        if self.native is not None:
            self.seen.by_hand.append(by_hand(self.model_parts[0], next(self.native)))
        super().train_step(batches)

    def forward_backward_step(self, *, input_dict: Any, **given: Any) -> Any:
        self.seen.tokens.append(input_dict["input"].numpy()[None])
        return super().forward_backward_step(input_dict=input_dict, **given)


def train(run: Any, folder: Path, steps: int, native: Any = None, at: Any = (0, 1, 0)) -> Steps:
    """With `at`, as that rank of so many, at a port."""
    join(*at)
    one = Noted(settings(run, folder, at[1]), steps, native)
    one.train()
    one.close()
    torch.distributed.destroy_process_group()
    return one.seen


def rank(number: int, ranks: int, port: int, run: Any, folder: Path) -> Steps:
    torch.set_num_threads(1)
    return train(run, folder, 6, at=(number, ranks, port))


class TestTorchtitan(Promises):
    train, rank = staticmethod(train), staticmethod(rank)
    elastic_tolerance = 1e-5  # Adam makes more of the rounding: 4e-6 at the sixth step

    def test_check_trainer_passes(self, data: Any, tmp_path: Path) -> None:
        join(0, 1, 0)
        one = Noted(settings(data, tmp_path, 1), 0, None)

        @torch.no_grad()
        def loss(batch: Any) -> Any:
            taken, labels = batch
            found = logits_of(one.model_parts[0], taken["input"], taken["positions"])
            return one.loss_fn(found, labels, (labels >= 0).sum())[0]

        check_trainer(loss, one.dataloader.loader)
        one.close()
        torch.distributed.destroy_process_group()
