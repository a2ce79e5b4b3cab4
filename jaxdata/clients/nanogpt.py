"""nanoGPT: a `get_batch` of a config, for `train.py`.

from jaxdata.clients.nanogpt import Data
data = Data("run.yaml", batch_size=batch_size, block_size=block_size, device=device)
get_batch = data.get_batch
if init_from == "resume": data.resume(checkpoint["data"])
…
checkpoint["data"] = data.state
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxdata.clients.agreement import Run
from jaxdata.clients.whole_rows import PairLoader
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
        evaluated = load_config(run, {}).eval_split
        given = {"rows": batch_size, "seq_len": block_size, "device": device}
        self._loaders = {
            name: PairLoader(run, split, "nanoGPT", across_documents=across_documents, **given)
            for name, split in {"train": None, "val": evaluated}.items()
        }

    def get_batch(self, split: str) -> tuple[Any, Any]:
        """`(X, Y)`, int64 (batch_size, block_size); Y is -1 where there is no loss."""
        return self._loaders[split].next()

    @property
    def state(self) -> dict[str, Any]:
        """For the checkpoint: plain JSON, the same in every process."""
        return self._loaders["train"].state

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, with any number of processes."""
        self._loaders["train"].resume(state)
