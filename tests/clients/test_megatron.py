"""Megatron-LM's external data loader, in a stand-in of its arguments, ranks and checkpoints.

`installed/test_megatron.py` trains with it.
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import jaxdata
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.clients import megatron
from jaxdata.feed.layouts import Megatron
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB

MASKING = {"dataloader_inter_document_masking": True, "create_attention_mask_in_dataloader": False}
ACROSS = {"across_documents": True}
ARGUMENTS: dict[str, Any] = {"dataloader_type": "external", "dataloader_save": None}
ARGUMENTS |= {"seq_length": SEQ_LEN, "padded_vocab_size": VOCAB + 24, "micro_batch_size": 2}
ARGUMENTS |= {"eval_micro_batch_size": 2, "global_batch_size": ROWS, "eval_iters": 1}
ARGUMENTS |= {"eval_global_batch_size": ROWS, "full_validation": False, "iteration": 0}
ARGUMENTS |= {"calculate_per_token_loss": True, "dataloader_inter_document_masking": False}
ARGUMENTS |= {"create_attention_mask_in_dataloader": True, "transformer_impl": "local"}
ARGUMENTS |= {"masked_softmax_fusion": False, "consumed_train_samples": 0}


class Trainer:
    """What `pretrain` does with a provider, in one process that plays any of its ranks."""

    def __init__(self, stand_in: Callable[..., Any], folder: Path) -> None:
        self.args, self.folder = SimpleNamespace(**ARGUMENTS), folder
        self.rank, self.ranks, self.tensor_rank = 0, 1, 0
        stand_in("megatron.training", get_args=lambda: self.args)
        state = SimpleNamespace(get_data_parallel_rank=lambda: self.rank)
        state.get_data_parallel_world_size = lambda: self.ranks
        state.get_tensor_model_parallel_rank = lambda: self.tensor_rank
        stand_in("megatron.core", parallel_state=state)

    def set(self, **arguments: Any) -> None:
        vars(self.args).update(arguments)

    def build(self, run: Any, steps: int = 7, **given: Any) -> tuple[Any, Any]:
        train, valid, test = megatron.provider(run, **given)((ROWS * steps, ROWS, 0))
        assert test is None
        return train, valid

    def save(self, iterator: Any, steps: int) -> None:
        """As `--dataloader-save` does, and the checkpoint's own numbers."""
        self.set(iteration=steps, consumed_train_samples=ROWS * steps)
        folder = Path(self.args.dataloader_save) / f"iter_{steps:07d}/mp_rank_00"
        folder.mkdir(parents=True)
        state = {"dataloader_state_dict": iterator.save_state()}
        torch.save(state, folder / f"train_dataloader_dprank{self.rank:03d}.pt")


@pytest.fixture
def trainer(stand_in: Callable[..., Any], tmp_path: Path) -> Trainer:
    return Trainer(stand_in, tmp_path)


def test_a_batch_has_what_this_attention_takes(trainer: Trainer, run: Any) -> None:
    masked = {**MASKING, "dataloader_inter_document_masking": False}
    for arguments, given, layout in (
        ({}, {}, Megatron(attention_mask=True)),
        (MASKING, {}, Megatron(cu_seqlens=True)),
        (masked, ACROSS, Megatron(attention_mask=False)),
    ):
        trainer.set(**arguments)
        batches, _ = trainer.build(run, **given)
        native = jaxdata.load(run, loader={"batch_size": 2})
        for batch, rows in islice(zip(batches, native, strict=True), 8):
            expected = layout(rows)
            assert batch.keys() == expected.keys()
            assert all(torch.equal(batch[name], torch.from_numpy(expected[name])) for name in batch)


def test_with_balance_ranks_and_micro_batches_share_a_global_batch(trainer: Any, run: Any) -> None:
    run["pack"] = {**run["pack"], "strategy": "pad"}
    run["curriculum"] = [{"rows": 60, "mix": {"pages": 1}}]
    run["loader"] = {"batch_size": 16, "balance": "attention"}
    trainer.set(**MASKING, global_batch_size=16)
    trainer.ranks, loaders = 2, []
    for trainer.rank in range(2):
        loaders.append(trainer.build(run, steps=2)[0])
    for rows in islice(jaxdata.load(run), 2):  # of 4 micro-batches of 2 rows on each of 2 ranks
        ranks = [[next(loader) for _ in range(4)] for loader in loaders]
        every = [row for rank in ranks for batch in rank for row in batch["labels"].tolist()]
        assert sorted(every) == sorted(Megatron(cu_seqlens=True)(rows)["labels"].tolist())
        work = [sum(float((b["loss_mask"].sum(-1) ** 2).sum()) for b in rank) for rank in ranks]
        assert max(work) <= 1.05 * sum(work) / 2
    assert loaders[0].save_state() == loaders[1].save_state()


def test_every_evaluation_has_the_same_rows(trainer: Trainer, run: Any) -> None:
    _, valid = trainer.build(run)
    passes = [[next(valid)["tokens"].tolist() for _ in range(4)] for _ in range(2)]
    assert passes[0] == passes[1]
    trainer.set(full_validation=True)
    _, valid = trainer.build(run)
    rows = [next(valid)["tokens"].tolist() for _ in range(2 * len(valid))]
    assert rows[: len(valid)] == rows[len(valid) :]
    trainer.set(full_validation=False, eval_iters=9)
    for scored, split in (({}, "val"), ({"eval": {"programs": "val/code"}}, "val/code")):
        says = rf"9 evaluates 72 rows, and split '{split}' .* lower it to 2"
        with pytest.raises(InputError, match=says):
            trainer.build(run | scored)


def test_other_tensor_parallel_ranks_read_nothing(trainer: Trainer, run: Any) -> None:
    trainer.tensor_rank = 1
    assert trainer.build(run) == (None, None)
    assert megatron.provider(run).is_distributed  # type: ignore[attr-defined]


def test_refused_before_the_first_step(trainer: Trainer, run: Any) -> None:
    mask = next(trainer.build(run, **ACROSS)[0])["attention_mask"]  # as is asked for
    assert torch.equal(mask[0, 0], ~torch.ones(SEQ_LEN, SEQ_LEN, dtype=torch.bool).tril())
    for changed, says in (
        ({"transformer_impl": "transformer_engine"}, "documents would attend to those before them"),
        ({"dataloader_type": "cyclic"}, "--dataloader-type is cyclic, whose sampler would choose"),
        ({"seq_length": 64}, "Megatron's --seq-length is 64: set pack.seq_len to 64"),
        ({"padded_vocab_size": 512}, "ids below 1,000, but Megatron's padded vocabulary is 512"),
        ({"calculate_per_token_loss": False}, "averages the means of micro-batches, which weighs"),
        ({"eod_mask_loss": True}, "--eod-mask-loss=True with a run of jaxdata: leave it out; it"),
        ({"phase_transition_iterations": [3]}, r"iterations=\[3\] .* counts samples anew in each"),
    ):
        trainer.args = SimpleNamespace(**ARGUMENTS | changed)
        with pytest.raises(InputError, match=says):
            trainer.build(run)
    trainer.args = SimpleNamespace(**ARGUMENTS)
    with pytest.raises(InputError, match="trains on 800 samples, and the config has 60 rows"):
        trainer.build(run, steps=100)
    run["loader"] = {**run["loader"], "skip_rows": [[8, 16]]}
    with pytest.raises(InputError, match=r"loader\.skip_rows without --dataloader-save"):
        trainer.build(run)


def test_it_goes_on_from_a_state_with_skips_or_from_the_samples(trainer: Any, run: Any) -> None:
    trainer.set(dataloader_save=str(trainer.folder), iteration=3, consumed_train_samples=24)
    batches, _ = trainer.build(run)  # a folder that has no state yet: by the number alone
    assert batches.loader.next_row == 24
    next(batches)
    trainer.save(batches, 4)
    with pytest.raises(StateMismatch, match="the state after 26 samples, and the checkpoint is of"):
        trainer.build(run)
    trainer.set(iteration=5)
    with pytest.raises(StateMismatch, match="has no state of iteration 5"):
        trainer.build(run)
    run["loader"] = {**run["loader"], "skip_rows": [[8, 16]]}
    trainer.set(dataloader_save=str(trainer.folder / "a"), iteration=0, consumed_train_samples=0)
    alone, _ = trainer.build(run, steps=6)
    list(islice(alone, 3 * ROWS // 2))
    trainer.save(alone, 3)
    expected = torch.cat([batch["labels"] for batch in islice(alone, 4)])
    trainer.set(micro_batch_size=1)  # of four ranks
    trainer.ranks, loaders = 4, []
    for trainer.rank in range(4):
        loaders.append(trainer.build(run, steps=6)[0])
    found = [each["labels"] for _ in range(ROWS // 4) for each in map(next, loaders)]
    assert torch.equal(torch.cat(found), expected)
