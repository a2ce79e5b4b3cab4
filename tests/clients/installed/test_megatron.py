"""Megatron-Core's own ranks, model, schedule, gradients and checkpoints on the rows of a config.

And its own datasets, beside rows in its order.

Its wheel has no `megatron.training`: its arguments are played here. Attention by `cu_seqlens` needs
Transformer Engine, and that a GPU.
"""

import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import jaxdata
from jaxdata.base.processes import held_port
from jaxdata.clients import megatron
from jaxdata.rows.megatron import blend, gpt
from jaxdata.testing import check_trainer
from tests.clients.installed.promises import Promises, Steps, needs
from tests.clients.test_megatron import ARGUMENTS
from tests.clients.tiny import ROWS, SEQ_LEN, mean_by_hand
from tests.dataset.documents.test_foreign import assert_holds, only_source

needs("megatron.core", "megatron")
from megatron.core import dist_checkpointing, distributed, parallel_state  # noqa: E402
from megatron.core.datasets import blended_megatron_dataset_builder, indexed_dataset  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402
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
            indexed_dataset._IndexReader.__getitem__.cache_clear()  # it holds files


class OnCpu(TorchFunctionMode):
    """The schedule counts tokens in a tensor that it makes on "cuda", by name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if given.get("device") == "cuda":
            given["device"] = "cpu"
        return func(*args, **given)


def model(per_token: bool = True) -> Any:
    torch.manual_seed(0)
    given = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    given |= {"attention_dropout": 0.0, "hidden_dropout": 0.0, "masked_softmax_fusion": False}
    given |= {"use_cpu_initialization": True, "calculate_per_token_loss": per_token}
    given |= {"finalize_model_grads_func": distributed.finalize_model_grads}
    sizes = {"vocab_size": ARGUMENTS["padded_vocab_size"], "max_sequence_length": SEQ_LEN}
    return GPTModel(TransformerConfig(**given), get_gpt_layer_local_spec(), **sizes)


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


def in_ranks(one: Any) -> Any:
    plain = distributed.DistributedDataParallelConfig()
    return distributed.DistributedDataParallel(one.config, plain, one)


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
    given = {"forward_step_func": forward_step, "data_iterator": batches, "model": ranked}
    given |= {"num_microbatches": count, "seq_length": SEQ_LEN}
    with OnCpu():
        get_forward_backward_func()(**given, micro_batch_size=ARGUMENTS["micro_batch_size"])
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
    ranks, ranked = parallel_state.get_data_parallel_world_size(), in_ranks(one)
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

    @pytest.mark.parametrize("per_token", [True, False])
    def test_check_trainer_tells_if_losses_are_by_token(self, data: Any, per_token: bool) -> None:
        """Without the flag micro-batches of any sizes weigh alike, which is refused for that."""
        one = model()

        @torch.no_grad()
        def loss(batch: Any) -> Any:
            return losses_of(one, batch).sum(), batch["loss_mask"].sum()

        def update(batches: Any) -> list[torch.Tensor]:
            ranked = in_ranks(model(per_token))
            gradients(ranked, iter(batches), len(batches))
            return [each.main_grad for each in ranked.parameters()]

        loader = build(data).loader
        if per_token:
            check_trainer(loss, loader, update=update)
            return
        with pytest.raises(AssertionError, match="it is the mean of their means") as caught:
            check_trainer(loss, loader, update=update)
        assert str(caught.value).count("\n") == 1, "nothing else is wrong"


SLOTS = 24
RESETS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")


class Tokenizer:
    """What Megatron asks of one here."""

    eod, pad, vocab_size = 0, -7, 60_000
    unique_identifiers = {"name": "none"}  # noqa: RUF012


def written(prefix: str, seed: int, dtype: Any, strewn: bool) -> list[np.ndarray]:
    """Documents of 0 to 3 sequences, by Megatron's builder; the sequences.

    Each ends with an EOD and holds no other; or they are strewn, and half of them lack the last.
    """
    random = np.random.default_rng(seed)
    builder = indexed_dataset.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    sequences = []
    for _ in range(120):
        lengths = random.integers(0, 70, random.integers(0, 4))
        own = [np.append(random.integers(1, 50_000, n), 0) for n in lengths]
        if strewn:
            own = [np.where(random.random(len(one)) < 0.1, 0, one) for one in own]
            own = [one[:-1] if len(one) > 1 and random.random() < 0.5 else one for one in own]
        builder.add_document(torch.tensor(np.concatenate([*own, []])), [len(one) for one in own])
        sequences += own
    builder.finalize(f"{prefix}.idx")
    return sequences


def theirs(folder: Path, blend: Any, size: int | None, **given: Any) -> Any:
    own = {"blend": blend, "split": "9,1", "tokenizer": Tokenizer(), "random_seed": 77}
    own |= {"sequence_length": SLOTS, "path_to_cache": str(folder / "cache")}
    config = GPTDatasetConfig(**{**dict.fromkeys(RESETS, False), **own, **given})
    other = None if blend and blend[1] is None else 1
    builder = blended_megatron_dataset_builder.BlendedMegatronDatasetBuilder
    return builder(GPTDataset, (size, other, other), lambda: True, config).build()[0]


BLENDS: Any = [(1, 40, None), (1, 900, None), (3, 500, (0.7, 0.2, 0.1)), (3, 500, None)]
BLENDS += [(3, None, None)]
"""how many datasets, samples, weights"""


@pytest.mark.parametrize("flags", product([False, True], repeat=3))
@pytest.mark.parametrize("strewn", [False, True])
@pytest.mark.parametrize("blended", BLENDS)
def test_rows_are_its_samples(tmp_path: Path, blended: Any, strewn: bool, flags: Any) -> None:
    """Each of its three options alone, and with the others."""
    (count, size, weights), (positions, attention, loss) = blended, flags
    given: dict[str, Any] = {"reset": positions or attention, "eod_mask_loss": loss}
    given |= {"positions": "segment" if positions else "row"}
    given |= {"by": "eod", "eod_id": 0} if strewn else {}
    prefixes, sources = [str(tmp_path / f"part{k}") for k in range(count)], []
    for number, prefix in enumerate(prefixes):
        sequences = written(prefix, number, np.uint16 if number % 2 else np.int32, strewn)
        sources.append(only_source(f"megatron:{prefix}"))
        assert_holds(sources[-1].sequences, sequences)
    both = (prefixes, list(weights) if weights else None)
    samples = theirs(tmp_path, both, size, **dict(zip(RESETS, flags, strict=True)))
    given |= {"seq_len": SLOTS, "seed": 77, "split": "9,1"}
    if count == 1:
        rows = gpt(sources[0], num_samples=size, **given)
    else:
        pairs = list(zip(weights or [None] * count, sources, strict=True))
        rows = blend(pairs, size=size, **given)
    assert_same(samples, rows, attention or not positions)


def assert_same(samples: Any, rows: Any, attention: bool) -> None:
    """All of every sample; of its padding all but positions and attention, which change no loss."""
    assert len(samples) == len(rows)
    batch = next(jaxdata.Loader(rows, batch_size=len(rows), prefetch=0))
    names = {"tokens": "inputs", "labels": "targets", "loss_mask": "loss_mask"}
    for number, sample in enumerate(samples[k] for k in range(len(rows))):
        ours = {name: array[number] for name, array in batch.items()}
        for name, own in names.items():
            assert (sample[name].numpy() == ours[own]).all(), (number, name)
        filled = ours["segment_ids"] > 0
        same = sample["position_ids"].numpy() == ours["positions"]
        assert same[filled].all(), number
        segment = ours["segment_ids"] if attention else filled
        seen = (segment[:, None] == segment) & np.tri(SLOTS, dtype=bool)
        same = ~sample["attention_mask"][0].numpy() == seen
        assert same[filled].all(), number
