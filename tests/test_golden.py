"""What must never change: the rows of a dataset that was written once and is kept.

`tests/data/format-2` was made by :func:`write_format_2`. It opens for ever, with these rows, on
every version of numpy that the project admits.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.dataset.opening import ConvertedDataset
from jaxdata.testing import write_dataset

FORMAT_2 = Path(__file__).parent / "data" / "format-2"
PHASES = [jaxdata.Phase(rows=40, weights={"words": 0.7, "masked": 0.3})]
PHASES += [jaxdata.Phase(tokens=64 * 30, weights={"words": 0.2, "masked": 0.8})]


def write_format_2(path: Path) -> None:
    """Documents that no random generator made: their lengths are 1 to 613."""
    words = [np.arange(7 * n, 7 * n + n * n * 31 % 613 + 1) % 256 for n in range(120)]
    masked = [np.arange(3 * n, 3 * n + n * n * 17 % 211 + 1) % 256 for n in range(90)]
    both = {"train/words": words, "train/masked": masked}
    documents = {name: [np.append(d[:-1], 256) for d in given] for name, given in both.items()}
    masks = {"train/masked": [np.arange(len(d)) % 5 > 1 for d in masked]}
    write_dataset(path, documents, masks, record_tokens=100, shard_documents=50)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ConvertedDataset:
    copy = tmp_path_factory.mktemp("golden") / "format-2"  # plans are written beside the data
    shutil.copytree(FORMAT_2, copy)
    return jaxdata.open_dataset(copy)


def fingerprint(rows: object, first: int, count: int = 16) -> str:
    content = hashlib.sha256()
    for number in range(first, first + count):
        row = rows[number]
        for name in ("inputs", "targets", "loss_mask", "segment_ids", "positions"):
            content.update(row[name].astype("<i4").tobytes())
    return content.hexdigest()[:16]


GOLDEN = {
    "documents best_fit 0": "ba89aed72c28d64b 49563908384fb687 705da3eb934dc66c b737e76aa782cc5a",
    "documents best_fit 16": "3bd848da94fe454b 30a589fc934b239e 40ec5bb0725c5e66 49ed86db1371344a",
    "documents concat 0": "a31663d4ff995e21 ba76fe21a9549ca9 26ee8e4cae7b21ee 3fc568c8fb42d65c",
    "documents crop 0": "3d434e905cc625e5 a054145fc7c7bf55 0a1d2dc861fbca20 884f37e4485a41e0",
    "documents pad 0": "f42387741371e0cd 8a72a509206704f4 a0c5bcf66454d949 b2a929eee8d7eb8a",
    "documents pad 16": "179921a785b211cc 7ecd248c5aaccc8e dc501d5bea84f94b b3078ba0c304e6a3",
    "chunks best_fit 0": "9fee05f79ad10ae0 9f35f97e24663d0f 477beaea22a83952 b088c3fe5e4ae829",
    "chunks best_fit 16": "411b52a0d1aa4142 676111c47873ea6d 29bf0fc0556c20f1 01693bb7848c46eb",
    "chunks concat 0": "a752cc600215c4a2 9ab111e515fc258a a169cc72bc961fa9 18420381c7f931c6",
    "chunks crop 0": "88d0f32acaf20501 e48dccda5783d5be 9ef61ac42a94024b 24935b2293330617",
    "chunks pad 0": "4ad654877abf898f 6eaa814676fb1fcc 17dbe06bca936277 961a583dc7d9ace5",
    "chunks pad 16": "b3e5e157650cd5c8 6df5668c551abda5 afc7a346cc0c7005 17d04850b242b470",
}
GOLDEN_MIXTURE = {"documents": "65fcd82755dcd858 3da4614a58666da3"}
GOLDEN_MIXTURE["chunks"] = "9a444ab0246d35d0 01f7dab93a63e088"
GOLDEN_BATCH = [24, 32, 28, 26, 34, 30, 25, 33, 29, 27, 35, 31]
GOLDEN_MIXED_BATCH = [28, 35, 29, 40, 34, 37, 32, 31, 36, 30, 41, 38, 39, 33]
CHUNKS: dict[str, Any] = {"chunk_bytes": 1024, "block_bytes": 8192, "lanes": 8}
ORDERS: dict[str, dict[str, Any]] = {"documents": {}, "chunks": CHUNKS}


@pytest.mark.parametrize("name", GOLDEN)
def test_rows_of_every_strategy(dataset: ConvertedDataset, name: str) -> None:
    order, strategy, overlap = name.rsplit(maxsplit=2)
    given = {"seq_len": 64, "strategy": strategy, "overlap": int(overlap), **ORDERS[order]}
    rows = jaxdata.pack(dataset.source("train", "words"), **given)
    starts = [0, len(rows) - 16, len(rows), 5 * len(rows) + 7]
    assert " ".join(fingerprint(rows, start) for start in starts) == GOLDEN[name]


def mixture(dataset: ConvertedDataset, order: str) -> Any:
    given, names = {"seq_len": 64, "seed": 3, **ORDERS[order]}, ("words", "masked")
    rows = {name: jaxdata.pack(dataset.source("train", name), **given) for name in names}
    return jaxdata.mix(rows, phases=PHASES, epochs={"masked": 2})


@pytest.mark.parametrize("order", ORDERS)
def test_rows_of_a_mixture(dataset: ConvertedDataset, order: str) -> None:
    mixed = mixture(dataset, order)
    parts = (0, 16), (0, len(mixed))
    assert " ".join(fingerprint(mixed, *part) for part in parts) == GOLDEN_MIXTURE[order]


def test_the_order_of_rows_inside_a_batch(dataset: ConvertedDataset) -> None:
    rows = jaxdata.pack(dataset.source("train", "words"), seq_len=64, **CHUNKS)
    assert jaxdata.Loader(rows, batch_size=12).batch_rows(2).tolist() == GOLDEN_BATCH
    mixed = mixture(dataset, "chunks")
    assert jaxdata.Loader(mixed, batch_size=14).batch_rows(2).tolist() == GOLDEN_MIXED_BATCH


def test_writing_it_again_gives_the_same_bytes(tmp_path: Path) -> None:
    write_format_2(tmp_path / "again")
    for path in sorted(FORMAT_2.rglob("*")):
        if path.is_file():
            again = tmp_path / "again" / path.relative_to(FORMAT_2)
            assert again.read_bytes() == path.read_bytes(), path
