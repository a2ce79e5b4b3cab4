"""nanoGPT: a `get_batch` of a config, for `train.py`.

from jaxdata.clients.nanogpt import Data
data = Data("run.yaml", batch_size=batch_size, block_size=block_size, device=device)
get_batch = data.get_batch
if init_from == "resume": data.resume(checkpoint["data"])
…
checkpoint["data"] = data.state
…
loss = data.loss(logits, Y)  # after logits, loss = model(X, Y)
"""

from collections.abc import Mapping
from typing import Any

from jaxdata.clients.agreement import PairLoader, Run, over_slots
from jaxdata.config import load_config


class Data:
    """Batches by split; the state counts those that were trained on.

    Args:
        run: a config, as for `jaxdata.load`; its `eval_split` is `get_batch`'s `"val"`.
        batch_size: rows of a batch of this process, as in `train.py`.
        block_size: length of a row, as in `train.py`.
        device: device of the tensors.
        across_documents: whether rows may hold several documents, which then see each other.
    """

    def __init__(
        self,
        run: Run,
        *,
        batch_size: int,
        block_size: int,
        device: Any = None,
        across_documents: bool = False,
    ) -> None:
        evaluated = load_config(run, {}).scored_split
        line = "loss = data.loss(logits, Y) after logits, loss = model(X, Y)"

        def loader(split: str | None, line: str | None) -> PairLoader:
            given = {"rows": batch_size, "seq_len": block_size, "device": device}
            given |= {"line": line, "across_documents": across_documents}
            return PairLoader(run, split, "nanoGPT", **given)

        self._loaders = {"train": loader(None, line), "val": loader(evaluated, None)}
        self._again = loader(None, None)

    def get_batch(self, split: str) -> tuple[Any, Any]:
        """`(X, Y)`, int64 (batch_size, block_size); Y is -1 where there is no loss.

        Without gradients, where `estimate_loss` asks for batches of "train" that nobody trains on,
        they are the first rows.
        """
        import torch

        if split == "train" and not torch.is_grad_enabled():
            return self._again.next()
        return self._loaders[split].next()

    def loss(self, logits: Any, targets: Any) -> Any:
        """The loss of a micro-batch in which all targets of a step weigh the same: per slot."""
        from torch.nn.functional import cross_entropy

        flat = logits.flatten(0, -2), targets.flatten()
        return over_slots(cross_entropy(*flat, ignore_index=-1, reduction="sum"), targets)

    @property
    def state(self) -> dict[str, Any]:
        """For the checkpoint: plain JSON, the same in every process."""
        return self._loaders["train"].state

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, with any number of processes."""
        self._loaders["train"].resume(state)
