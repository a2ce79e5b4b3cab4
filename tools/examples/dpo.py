"""Tuning on preferences, from a file to a trained model: TRL's DPOTrainer on aligned pairs.

python tools/examples/dpo.py dpo_en_demo.json tokenizer.json runs/dpo 100
"""

import copy
import sys
from pathlib import Path

import transformers
import trl

import jaxdata
from jaxdata.clients.hf import Jaxdata

data, tokenizer, output, steps = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
report = jaxdata.convert(
    data,
    output=output / "data",
    source="choices",
    task="dpo",
    tokenizer=f"hf:{tokenizer}",
    separator="\n",
)
print(report)
dataset = jaxdata.open_dataset(output / "data")
sides = [dataset.source("train", f"choices/{side}") for side in ("chosen", "rejected")]
pairs = jaxdata.pairs(*sides, seq_len=512, max_prompt=256)
loader = jaxdata.torch.Loader(pairs, batch_size=2, layout="hf", reiterable=True)


class Trainer(Jaxdata, trl.DPOTrainer):
    pass


config = transformers.LlamaConfig(
    vocab_size=len(dataset.token_bytes),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
)  # your model: transformers.AutoModelForCausalLM.from_pretrained(...)
arguments = trl.DPOConfig(
    str(output), max_steps=steps, logging_steps=1, report_to=[], disable_tqdm=True, bf16=False
)
model = transformers.LlamaForCausalLM(config)
trainer = Trainer(
    model,
    ref_model=copy.deepcopy(model),
    args=arguments,
    train_dataset=loader,
    processing_class=transformers.PreTrainedTokenizerFast(
        tokenizer_file=tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    ),
)
trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"step {entry['step'] - 1}  loss {entry['loss']:.4f}")
