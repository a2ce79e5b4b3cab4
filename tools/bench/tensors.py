"""How many tokens a second does a torch trainer get, and what does a `DataLoader` cost?

All of it on the host: the same rows as `load.py` has, as tensors. Of crops, whole batches are made
as nanoGPT makes them, by a dataset for torch's own `DataLoader`.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from corpus import made
from harness import Contestant, Report, arguments, chosen, compare, machine, parse
from load import BATCH, SEQ_LEN, crops, endless, ours, rows_of
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import jaxdata.torch

ARRAYS, CROPS = "jaxdata, numpy", "DataLoader of crops, 2 workers"


class Crops(IterableDataset[Any]):
    """Random crops of a memory map, two arrays a batch, for ever."""

    def __init__(self, flat: NDArray[np.uint16]) -> None:
        self._flat = flat

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = np.random.default_rng(0)
        while True:
            starts = order.integers(0, len(self._flat) - SEQ_LEN - 1, BATCH)
            slots = starts[:, None] + np.arange(SEQ_LEN + 1)
            both = torch.from_numpy(self._flat[slots].astype(np.int64))
            yield both[:, :-1].contiguous(), both[:, 1:].contiguous()


def taken(batches: Iterable[Any]) -> Callable[[], float]:
    """A batch; what makes them is started at the first turn."""
    stream: list[Iterator[Any]] = []

    def work() -> float:
        if not stream:
            stream.append(iter(batches))
        next(stream[0])
        return float(BATCH * SEQ_LEN)

    return work


def main() -> None:
    """Load in turns."""
    given = parse(arguments(__doc__ or ""))
    warnings.simplefilter("ignore")
    corpus = made(given.data, quick=given.quick)
    rows = endless(rows_of(corpus))

    def loader(**settings: Any) -> jaxdata.torch.Loader:
        return jaxdata.torch.Loader(rows, batch_size=BATCH, **{"prefetch": 0} | settings)

    workers = {"batch_size": None, "num_workers": 2}
    numbered = jaxdata.torch.Batches(rows, batch_size=BATCH)
    waiting = {"threads": True}
    contestants = [
        Contestant(ARRAYS, ours(rows)),
        Contestant("crops, numpy", crops(corpus.flat, BATCH), ARRAYS),
        Contestant("Loader", taken(loader()), ARRAYS),
        Contestant("Loader, hf", taken(loader(layout="hf")), ARRAYS),
        Contestant("Batches, one after the other", taken(numbered), ARRAYS),
        Contestant("Loader, a thread ahead", taken(loader(prefetch=2)), ARRAYS, **waiting),
        Contestant(
            "Loader, 2 workers of its own", taken(loader(prefetch=2, num_workers=2)), **waiting
        ),
        Contestant(CROPS, taken(DataLoader(Crops(corpus.flat), **workers)), **waiting),
        Contestant(
            "DataLoader of Loader", taken(DataLoader(loader(), **workers)), CROPS, **waiting
        ),
        Contestant(
            "DataLoader of Batches", taken(DataLoader(numbered, **workers)), CROPS, **waiting
        ),
        Contestant(
            "StatefulDataLoader", taken(StatefulDataLoader(loader(), **workers)), CROPS, **waiting
        ),
    ]
    facts = machine("torch", "torchdata") | {"batch": f"{BATCH}x{SEQ_LEN}"}
    report = Report("tensors", "Tensors", "million tokens a second", facts=facts)
    turns = {"rounds": given.rounds, "seconds": given.seconds, "scale": 1e-6}
    compare(report, chosen(contestants, given.only), **turns).show(given.json)


if __name__ == "__main__":
    main()
