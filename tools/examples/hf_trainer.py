"""Hugging Face's Trainer: stopped anywhere, `resume_from_checkpoint` goes on to the same losses.

python tools/examples/hf_trainer.py data/mine runs/hf 100
"""

import sys

import transformers
from transformers.trainer_utils import get_last_checkpoint

import jaxdata
from jaxdata.clients.hf import Jaxdata

path, output, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
dataset = jaxdata.open_dataset(path)
names = dataset.splits["train"]
packed = {name: jaxdata.pack(dataset.source("train", name), seq_len=128) for name in names}
loader = jaxdata.torch.Loader(jaxdata.mix(packed), batch_size=8, layout="hf")


class Trainer(Jaxdata, transformers.Trainer):
    pass


config = transformers.LlamaConfig(
    vocab_size=len(dataset.token_bytes),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
)
arguments = transformers.TrainingArguments(
    output,
    max_steps=steps,
    save_steps=steps,
    logging_steps=1,
    lr_scheduler_type="constant",  # any other one knows where the run will end
    report_to=[],
    disable_tqdm=True,
)
transformers.set_seed(0)
trainer = Trainer(transformers.LlamaForCausalLM(config), args=arguments, train_dataset=loader)
trainer.train(resume_from_checkpoint=get_last_checkpoint(output))
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"step {entry['step'] - 1}  loss {entry['loss']}  tokens {entry['data/tokens']:.0f}")
