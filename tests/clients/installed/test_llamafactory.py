"""LLaMA-Factory's own experiments on the rows of a config."""

import os
from pathlib import Path
from typing import Any, ClassVar

from jaxdata.clients import llamafactory
from tests.clients.installed.promises import Steps, needs
from tests.clients.tiny import ROWS, SEQ_LEN

os.environ |= {"USE_MODELSCOPE_HUB": "0", "HF_HUB_OFFLINE": "1"}
needs("llamafactory", "llamafactory")
from llamafactory.train.tuner import run_exp  # noqa: E402 - after it was found

from tests.clients.installed.programs import Programs, join, make_model, newest, noted  # noqa: E402


def train(run: Any, folder: Path, steps: int, native: Any = None, **given: Any) -> Steps:
    asked = {"model_name_or_path": str(make_model(folder / "model")), "stage": "pt"}
    asked |= {"do_train": True, "finetuning_type": "full", "dataset": "jaxdata", "use_cpu": True}
    asked |= {"cutoff_len": SEQ_LEN, "per_device_train_batch_size": ROWS, "max_steps": steps}
    asked |= {"learning_rate": 0.01, "lr_scheduler_type": "constant", "report_to": "none"}
    asked |= {"save_steps": 3, "logging_steps": 1, "output_dir": str(folder / "out")}
    asked |= {"resume_from_checkpoint": newest(folder)}
    llamafactory.install(run)
    with noted(native) as seen:
        run_exp({**asked, **given})
    return seen


def rank(number: int, ranks: int, port: int, run: Any, folder: Path) -> Steps:
    join(number, ranks, port)
    return train(run, folder, 6, per_device_train_batch_size=ROWS // ranks)


class TestLlamaFactory(Programs):
    train, rank = staticmethod(train), staticmethod(rank)
    size, given = "per_device_train_batch_size", {"template": "default", "stage": "sft"}
    refused: ClassVar = [
        ({"neat_packing": True}, "neat_packing=True with a run of jaxdata"),
        ({"dataset": "alpaca"}, "dataset=['alpaca'] with a run of jaxdata: give ['jaxdata']"),
        ({"stage": "dpo"}, "a run of jaxdata: give pt or sft, on texts"),
        ({"cutoff_len": 64}, f"pack.seq_len={SEQ_LEN}, but LLaMA-Factory's cutoff_len is 64"),
    ]
