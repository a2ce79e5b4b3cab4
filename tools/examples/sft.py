"""Tuning on instructions, from a file to a trained model: TRL's SFTTrainer on packed answers.

python tools/examples/sft.py gsm8k_train.jsonl tokenizer.json runs/sft 100
"""

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
    source="answers",
    task="sft",
    tokenizer=f"hf:{tokenizer}",
    prompt_key="question",
    completion_key="answer",
    separator="\n",
)
print(report)
dataset = jaxdata.open_dataset(output / "data")
rows = jaxdata.pack(dataset.source("train", "answers"), seq_len=256)
loader = jaxdata.torch.Loader(rows, batch_size=4, layout="hf", reiterable=True)


class Trainer(Jaxdata, trl.SFTTrainer):
    pass


config = transformers.LlamaConfig(
    vocab_size=len(dataset.token_bytes),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
)  # your model: transformers.AutoModelForCausalLM.from_pretrained(...)
arguments = trl.SFTConfig(
    str(output), max_steps=steps, logging_steps=1, report_to=[], disable_tqdm=True, bf16=False
)
trainer = Trainer(
    transformers.LlamaForCausalLM(config),
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
