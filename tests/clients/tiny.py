"""A tiny model, what its losses have to be by hand, and a training loop; float64, deterministic."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

VOCAB, SEQ_LEN, ROWS = 1000, 192, 8
CLOSE = 1e-6
"""how far a loss may be from what was worked out by hand"""


def config_of(dataset: Path) -> dict[str, Any]:
    """A config: pages and code, mixed and packed."""
    phases = [{"rows": 60, "mix": {"pages": 0.6, "code": 0.4}}]
    given = {"dataset": str(dataset), "pack": {"seq_len": SEQ_LEN}, "curriculum": phases}
    return given | {"loader": {"batch_size": ROWS}, "eval_tokens": 20 * SEQ_LEN}


class Tiny(torch.nn.Module):
    """One layer of attention; it knows positions and sees what it is told to see."""

    def __init__(self, vocab: int = VOCAB) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)

        def weight(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(0.3 * torch.randn(*shape, generator=random).double())

        self.tokens, self.places = weight(vocab, 16), weight(SEQ_LEN, 16)
        self.qkv, self.head = weight(16, 48), weight(16, vocab)

    def forward(self, tokens: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """Logits; `seen` is bool (…, length, length)."""
        x = self.tokens[tokens] + self.places[positions]
        q, k, v = (x @ self.qkv).chunk(3, dim=-1)
        scores = (q @ k.mT).masked_fill(~seen, float("-inf"))
        out: Tensor = (x + scores.softmax(-1) @ v) @ self.head
        return out

    def costs(self, tokens: Any, targets: Any, positions: Any, ids: Any) -> Tensor:
        """The loss of each slot, where equal neighbouring `ids` mark a document."""
        tokens, targets, positions, ids = map(tensor, (tokens, targets, positions, ids))
        seen = (ids[..., :, None] == ids[..., None, :]).tril()
        logits = self(tokens.long(), positions.long(), seen)
        return functional.cross_entropy(logits.mT, targets.long(), reduction="none")


def mean_by_hand(logits_of: Any, batch: Any) -> float:
    """Each document in a row of its own."""
    total, count, names = 0.0, 0, ("inputs", "targets", "loss_mask")
    for row, ids in enumerate(batch["segment_ids"]):
        for segment in range(1, ids.max() + 1):
            at = ids == segment
            inputs, targets, mask = (batch[name][row][at] for name in names)
            slots, pad = np.arange(at.sum()), np.zeros((3, len(ids)), np.int32)
            pad[:, : len(slots)] = [inputs, slots, np.ones(len(slots))]
            logits = np.asarray(logits_of(*pad[:, None]), np.float64)[0, : len(slots)]
            nats = np.log(np.exp(logits).sum(-1)) - logits[slots, targets]
            total, count = total + nats[mask].sum(), count + mask.sum()
    return total / count


def logits_of(model: Any, inputs: Any, positions: Any, _: Any) -> Any:
    """Of a model of transformers, for one document, which begins its row."""
    return model(input_ids=tensor(inputs).long(), position_ids=tensor(positions).long()).logits


def tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))


def by_hand(model: Tiny, batch: Any) -> float:
    """The mean loss of a batch of `jaxdata.Loader`, each segment computed alone."""

    @torch.no_grad()
    def logits(tokens: Any, positions: Any, _: Any) -> Any:
        seen = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        return model(tensor(tokens).long(), tensor(positions).long(), seen)

    return mean_by_hand(logits, batch)


def train(
    model: Tiny, batches: Iterable[Any], loss_of: Callable[[Tiny, Any], Tensor], steps: int
) -> Iterator[float]:
    """The loss of each step before it changed the weights."""
    for batch in islice(batches, steps):
        model.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for weight in model.parameters():
                if weight.grad is not None:
                    weight -= 0.5 * weight.grad
        yield loss.item()


def assert_by_hand(
    model: Tiny, batches: Iterable[Any], loss_of: Callable[[Tiny, Any], Tensor], native: Any
) -> list[float]:
    """Train six steps, each with the loss that its rows have by hand."""
    losses, batches = [], iter(batches)
    for _, rows in zip(range(6), native, strict=False):
        expected = by_hand(model, rows)
        losses += train(model, batches, loss_of, 1)
        assert abs(losses[-1] - expected) < CLOSE
    assert len(losses) == 6
    assert len(set(losses)) == 6
    return losses
