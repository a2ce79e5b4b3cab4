"""LLaMA-Factory's own experiments on the rows of a config."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from jaxdata.base.errors import InputError
from jaxdata.clients import llamafactory
from tests.clients.installed.promises import Promises, Steps, needs
from tests.clients.tiny import ROWS, SEQ_LEN

os.environ |= {"USE_MODELSCOPE_HUB": "0", "HF_HUB_OFFLINE": "1"}
needs("llamafactory", "llamafactory")
from llamafactory.train.tuner import run_exp  # noqa: E402 - after it was found

from tests.clients.installed.programs import join, make_model, newest, noted  # noqa: E402


def train(run: Any, folder: Path, steps: int, native: Any = None, **given: Any) -> Steps:
    arguments = {
        "model_name_or_path": str(make_model(folder / "model")),
        "stage": "pt",
        "do_train": True,
        "finetuning_type": "full",
        "dataset": "jaxdata",
        "cutoff_len": SEQ_LEN,
        "per_device_train_batch_size": ROWS,
        "max_steps": steps,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "save_steps": 3,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "output_dir": str(folder / "out"),
        "resume_from_checkpoint": newest(folder),
    }
    llamafactory.install(run)
    with noted(native) as seen:
        run_exp({**arguments, **given})
    return seen


def rank(number: int, ranks: int, port: int, run: Any, folder: Path) -> Steps:
    join(number, ranks, port)
    return train(run, folder, 6, per_device_train_batch_size=ROWS // ranks)


class TestLlamaFactory(Promises):
    train, rank = staticmethod(train), staticmethod(rank)

    @pytest.mark.parametrize("stage", ["pt", "sft"])
    def test_accumulated_batches_make_the_update_of_the_whole_batch(
        self, data: Any, tmp_path: Path, stage: str
    ) -> None:
        uneven = {**data, "pack": {**data["pack"], "strategy": "pad"}}
        found = []
        for parts in (1, 4):
            size = {"per_device_train_batch_size": ROWS // parts, "template": "default"}
            given = {"stage": stage, "gradient_accumulation_steps": parts, **size}
            losses = train(uneven, tmp_path / f"{parts}", 2, **given).losses
            assert len(losses) == 2 * parts
            found.append([sum(losses[:parts]), sum(losses[parts:])])
        assert found[0] == pytest.approx(found[1], rel=1e-4)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"neat_packing": True, "stage": "sft"}, "neat_packing=True with a run of jaxdata"),
            ({"dataset": "alpaca"}, "dataset=['alpaca'] with a run of jaxdata: write dataset: jax"),
            ({"stage": "dpo", "template": "default"}, "a run of jaxdata: give pt or sft, on texts"),
            ({"cutoff_len": 64}, f"pack.seq_len={SEQ_LEN}, but LLaMA-Factory's cutoff_len is 64"),
        ],
    )
    def test_what_would_train_on_something_else_is_refused(
        self, data: Any, tmp_path: Path, given: Any, said: str
    ) -> None:
        with pytest.raises(InputError, match=re.escape(said)):
            train(data, tmp_path, 1, **{"template": "default", **given})
