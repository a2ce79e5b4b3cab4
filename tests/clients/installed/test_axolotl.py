"""axolotl's own command on the rows of a config."""

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml

from tests.clients.installed.promises import Steps, needs
from tests.clients.tiny import ROWS, SEQ_LEN

os.environ |= {"AXOLOTL_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
needs("axolotl", "axolotl")
from axolotl.cli.train import do_cli  # noqa: E402 - after it was found

from tests.clients.installed.programs import Programs, join, make_model, newest, noted  # noqa: E402


def settings(run: Any, folder: Path, steps: int, **given: Any) -> str:
    """An axolotl YAML."""
    asked = {"base_model": str(make_model(folder / "model")), "output_dir": str(folder / "out")}
    asked |= {"plugins": ["jaxdata.clients.axolotl.Plugin"], "jaxdata": run}
    asked |= {"sequence_len": SEQ_LEN, "micro_batch_size": ROWS, "gradient_accumulation_steps": 1}
    asked |= {"num_epochs": 1, "max_steps": steps, "save_steps": 3, "logging_steps": 1}
    asked |= {"learning_rate": 0.01, "lr_scheduler": "constant", "optimizer": "adamw_torch"}
    asked |= {"bf16": False, "fp16": False, "eval_strategy": "no"}
    asked |= {"special_tokens": {"pad_token": "<end>"}, "resume_from_checkpoint": newest(folder)}
    path = folder / "axolotl.yaml"
    path.write_text(yaml.safe_dump({**asked, **given}))
    return str(path)


def train(run: Any, folder: Path, steps: int, native: Any = None, **given: Any) -> Steps:
    with noted(native) as seen:
        do_cli(settings(run, folder, steps, **given))
    return seen


def rank(number: int, ranks: int, port: int, run: Any, folder: Path) -> Steps:
    join(number, ranks, port)
    return train(run, folder, 6, micro_batch_size=ROWS // ranks)


class TestAxolotl(Programs):
    train, rank, size = staticmethod(train), staticmethod(rank), "micro_batch_size"
    refused: ClassVar = [
        ({"sample_packing": True}, "sample_packing=True with a run of jaxdata: leave it out; the"),
        ({"val_set_size": 0.1}, "what is trained and scored on is in the run of jaxdata"),
        ({"jaxdata": None}, "say what to train on, jaxdata: FILE"),
        ({"sequence_len": 64}, f"pack.seq_len={SEQ_LEN}, but axolotl's sequence_len is 64"),
    ]

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="axolotl: one of several wants a GPU")
    def test_two_processes_go_on_where_one_ended(self, data: Any, whole: Any, half: Path) -> None:
        super().test_two_processes_go_on_where_one_ended(data, whole, half)
