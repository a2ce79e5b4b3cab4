"""Lightning's own `Trainer` and checkpoints on the rows of a config."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.clients import lightning as rows
from jaxdata.testing import check_trainer
from tests.clients.installed.promises import Promises, Steps, needs
from tests.clients.tiny import ROWS, Tiny, by_hand

lightning = needs("lightning", "lightning")
from lightning.pytorch import callbacks  # noqa: E402 - after what it comes with was found

RAMP = callbacks.GradientAccumulationScheduler({0: 2})
RAMP_SAID = "a GradientAccumulationScheduler changes the batches of an update: give ramps"
PLAIN = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A tiny model that notes what it trains on."""

    def __init__(self, native: Any = None, *, mean: bool = False) -> None:
        super().__init__()
        self.model, self.native, self.mean, self.seen = Tiny(), native, mean, Steps()

    def logits(self, batch: Any) -> torch.Tensor:
        ids = batch["segment_ids"]
        seen = (ids[:, :, None] == ids[:, None]).tril()
        found: torch.Tensor = self.model(batch["inputs"], batch["positions"], seen)
        return found

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        if self.native is not None:
            self.seen.by_hand.append(by_hand(self.model, next(self.native)))
        if self.mean:
            mask = batch["loss_mask"]
            arrays = ("inputs", "targets", "positions", "segment_ids")
            costs = self.model.costs(*map(batch.get, arrays))
            return costs[mask].mean()
        loss = rows.loss(self.logits(batch), batch)
        parts = loss.detach().clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(parts)
            parts /= torch.distributed.get_world_size()
        self.seen.losses.append(float(parts))
        self.seen.tokens.append(batch["inputs"].numpy()[None])
        return loss

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("evaluated", rows.loss(self.logits(batch), batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.5)


def trainer(folder: Path, steps: int, **given: Any) -> Any:
    saves = callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    plain = {"callbacks": [saves], "accelerator": "cpu", "devices": 1, "limit_val_batches": 0}
    return lightning.Trainer(**{**PLAIN, **plain, "max_steps": steps, **given})


def newest(folder: Path) -> Path | None:
    return max(folder.glob("*.ckpt"), key=lambda each: each.name, default=None)


def train(run: Any, folder: Path, steps: int, native: Any = None, **given: Any) -> Steps:
    one = Module(native)
    kept = newest(folder)
    begin = {"ckpt_path": kept and str(kept), "weights_only": False}
    trainer(folder, steps, **given).fit(one, datamodule=rows.datamodule(run), **begin)
    return one.seen


def rank(number: int, ranks: int, port: int, run: Any, folder: Path) -> Steps:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(number)}
    os.environ |= {"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"TORCHELASTIC_RUN_ID": "tests"}
    return train(run, folder, 6, devices=ranks, strategy="ddp")


class TestLightning(Promises):
    train, rank = staticmethod(train), staticmethod(rank)

    @pytest.mark.parametrize("parts", [2, 4])
    def test_accumulated_batches_make_the_update_of_the_whole_batch(
        self, data: Any, parts: int, tmp_path: Path
    ) -> None:
        uneven = {**data, "pack": {**data["pack"], "strategy": "pad"}}
        found = []
        for accumulated in (1, parts):
            one = Module()
            once = trainer(tmp_path / f"{accumulated}", 1, accumulate_grad_batches=accumulated)
            once.fit(one, datamodule=rows.datamodule(uneven))
            found.append(torch.cat([each.detach().ravel() for each in one.model.parameters()]))
            assert len(one.seen.losses) == accumulated
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)

    def test_a_mean_over_a_batch_is_refused_where_batches_are_accumulated(
        self, data: Any, tmp_path: Path
    ) -> None:
        once = trainer(tmp_path, 1, accumulate_grad_batches=2)
        with pytest.raises(InputError, match=r"let it return rows.loss\(logits, batch\)"):
            once.fit(Module(mean=True), datamodule=rows.datamodule(data))
        trainer(tmp_path, 1).fit(Module(mean=True), datamodule=rows.datamodule(data))

    def test_an_epoch_is_a_pass(self, data: Any, tmp_path: Path) -> None:
        twice = {"max_epochs": 2, "accumulate_grad_batches": 1}
        again, once = Module(), Module()
        run = {**data, "loader": {**data["loader"], "reiterable": True}}
        trainer(tmp_path / "a", -1, **twice).fit(again, datamodule=rows.datamodule(run))
        assert len(again.seen.losses) == 2 * len(jaxdata.load(data))
        with pytest.raises(InputError, match="reset"):
            trainer(tmp_path / "b", -1, **twice).fit(once, datamodule=rows.datamodule(data))

    def test_evaluation_is_of_the_same_rows_each_time(self, data: Any, tmp_path: Path) -> None:
        found = []
        for _ in range(2):
            one = trainer(tmp_path, 1, limit_val_batches=1.0)
            module = Module()
            [said] = one.validate(module, datamodule=rows.datamodule(data), verbose=False)
            found.append(said["evaluated"])
        assert found[0] == found[1] > 0

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"overfit_batches": 2}, "overfit_batches=2 of Trainer with rows of a config: leave"),
            ({"limit_train_batches": 3}, "of Trainer with rows of a config: give 1.0; end the run"),
            ({"callbacks": [RAMP]}, RAMP_SAID),
            ({"accumulate_grad_batches": 3}, "not divisible by accumulate_grad_batches=3: set"),
        ],
    )
    def test_what_would_train_on_other_batches_is_refused(
        self, data: Any, tmp_path: Path, given: Any, said: str
    ) -> None:
        with pytest.raises(InputError, match=re.escape(said)):
            trainer(tmp_path, 1, **given).fit(Module(), datamodule=rows.datamodule(data))

    def test_check_trainer_passes(self, data: Any) -> None:
        one = Module()

        @torch.no_grad()
        def loss(batch: Any) -> Any:
            return rows.loss(one.logits(batch), batch)

        given = {"batch_size": ROWS, "prefetch": 0, "long": True}
        check_trainer(loss, jaxdata.torch.Loader(jaxdata.load(data).rows, **given))
