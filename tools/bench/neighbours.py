"""Other loaders, where they are installed: LitData's flat blocks, Hugging Face's pre-cut rows."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from corpus import Corpus

__all__ = ["datasets_work", "installed", "litdata_work"]


def installed(package: str) -> bool:
    """Whether a package is there."""
    return importlib.util.find_spec(package) is not None


def litdata_work(corpus: Corpus, seq_len: int, batch_size: int) -> Callable[[], float]:
    """LitData's TokensLoader: shuffled blocks of a flat stream, stacked, as they come (uint16)."""
    import litdata
    import torch

    torch.set_num_threads(1)

    folder = corpus.path / "litdata"
    if not (folder / "index.json").exists():
        _write_litdata(corpus, folder, seq_len)
    loader = litdata.TokensLoader(block_size=seq_len + 1)

    def blocks() -> Iterator[torch.Tensor]:
        while True:
            yield from litdata.StreamingDataset(
                str(folder), item_loader=loader, shuffle=True, drop_last=False
            )

    stream = blocks()

    def work() -> float:
        rows = torch.stack([next(stream) for _ in range(batch_size)])
        return float(rows[:, :-1].numel())

    return work


def _write_litdata(corpus: Corpus, folder: Path, seq_len: int) -> None:
    import litdata
    import torch
    from litdata.streaming.writer import BinaryWriter

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    block = (seq_len + 1) * 4_000
    writer = BinaryWriter(
        str(folder), chunk_size=block, item_loader=litdata.TokensLoader(block_size=seq_len + 1)
    )
    flat = corpus.flat
    for number, start in enumerate(range(0, len(flat) - seq_len, seq_len + 1)):
        piece = flat[start : start + seq_len + 1]
        writer.add_item(number, torch.from_numpy(piece.astype(np.uint16)))
    writer.done()
    writer.merge()


def datasets_work(corpus: Corpus, seq_len: int, batch_size: int) -> Callable[[], float]:
    """Hugging Face datasets, numpy format: rows of seq_len + 1 cut beforehand, shuffled."""
    import datasets

    folder = corpus.path / "datasets"
    if not folder.exists():
        rows = len(corpus.flat) // (seq_len + 1)
        table = corpus.flat[: rows * (seq_len + 1)].reshape(rows, seq_len + 1)
        kind = datasets.Features(
            {"tokens": datasets.Sequence(datasets.Value("uint16"), length=seq_len + 1)}
        )
        datasets.Dataset.from_dict({"tokens": table}, features=kind).save_to_disk(str(folder))
    rows = datasets.load_from_disk(str(folder)).with_format("numpy")
    order = np.random.default_rng(0)

    def work() -> float:
        chosen = order.integers(0, len(rows), batch_size)
        tokens = rows[chosen]["tokens"].astype(np.int32)
        return float(tokens[:, :-1].size + tokens[:, 1:].size) / 2

    return work
