"""A loop in torch, alone or under torchrun: stopped anywhere, it goes on to the same losses.

python tools/examples/torch_loop.py data/mine run.pt 100
"""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import jaxdata

path, saved, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
dataset = jaxdata.open_dataset(path)
names = dataset.splits["train"]
packed = {name: jaxdata.pack(dataset.source("train", name), seq_len=128) for name in names}
device = "cuda" if torch.cuda.is_available() else "cpu"
loader = jaxdata.torch.Loader(jaxdata.mix(packed), batch_size=8, device=device, long=True)


class Model(torch.nn.Module):
    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = (
            torch.nn.Embedding(vocabulary, width),
            torch.nn.Embedding(128, width),
        )
        self.qkv, self.head = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, vocabulary)

    def forward(self, batch):
        x = self.tokens(batch["inputs"]) + self.places(batch["positions"])
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        mask = jaxdata.torch.attention_mask(batch["segment_ids"])
        return self.head(x + scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0])


torch.manual_seed(0)
model = Model(len(dataset.token_bytes)).to(device)
adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
parts = {"model": model, "adam": adam, "data": loader}
if saved.exists():
    for name, state in torch.load(saved).items():
        parts[name].load_state_dict(state)
for step in range(loader.step, steps):
    batch = next(loader)
    nats = cross_entropy(model(batch).mT, batch["targets"], reduction="none")
    loss = (nats * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
    loss.backward(), adam.step(), adam.zero_grad()
    print(f"step {step}  loss {loss.item():.9f}")
    if step + 1 == steps or (step + 1) % 50 == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, saved)
