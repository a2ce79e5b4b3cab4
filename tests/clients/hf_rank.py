"""One of several processes that resume a Trainer's run: folder of the run, folder of the data."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers

import jaxdata
import jaxdata.torch
from jaxdata.clients.hf import Jaxdata


class Trainer(Jaxdata, transformers.Trainer):
    pass


def main(run: Path, data: str) -> None:
    torch.set_num_threads(1)
    arguments = transformers.TrainingArguments(
        str(run), max_steps=6, save_strategy="no", learning_rate=1e-2, report_to=[], use_cpu=True
    )
    pages = jaxdata.open_dataset(data).source("train", "pages")
    rows = jaxdata.pack(pages, seq_len=64)
    loader = jaxdata.torch.Loader(rows, batch_size=4, layout="hf", reiterable=True)
    assert len(loader.sample()["inputs"]) == 2
    config = transformers.AutoConfig.from_pretrained(run / "checkpoint-3")
    model = transformers.LlamaForCausalLM(config)
    trainer = Trainer(model=model, args=arguments, train_dataset=loader)
    trainer.train(resume_from_checkpoint=str(run / "checkpoint-3"))
    if trainer.is_world_process_zero():
        torch.save(trainer.model.state_dict(), run / "two.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
