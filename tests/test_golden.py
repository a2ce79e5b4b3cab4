"""What must never change: the rows of a dataset that was written once and is kept.

`tests/data/format-1` was made by :func:`write_format_1`. It opens for ever, with these rows, on
every version of numpy that the project admits.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.documents.converted_dataset import ConvertedDataset
from jaxdata.packing.planner import pack_block
from jaxdata.testing import write_dataset

FORMAT_1 = Path(__file__).parent / "data" / "format-1"
PHASES = [
    jaxdata.Phase(rows=40, weights={"words": 0.7, "masked": 0.3}),
    jaxdata.Phase(tokens=64 * 30, weights={"words": 0.2, "masked": 0.8}),
]


def write_format_1(path: Path) -> None:
    """Documents that no random generator made: their lengths are 1 to 613."""
    words = [np.arange(7 * n, 7 * n + n * n * 31 % 613 + 1) % 256 for n in range(120)]
    masked = [np.arange(3 * n, 3 * n + n * n * 17 % 211 + 1) % 256 for n in range(90)]
    documents = {
        name: [np.append(d[:-1], 256) for d in given]
        for name, given in (("train/words", words), ("train/masked", masked))
    }
    masks = {"train/masked": [np.arange(len(d)) % 5 > 1 for d in masked]}
    write_dataset(path, documents, masks, record_tokens=100, shard_documents=50)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ConvertedDataset:
    copy = tmp_path_factory.mktemp("golden") / "format-1"  # plans are written beside the data
    shutil.copytree(FORMAT_1, copy)
    return jaxdata.open_dataset(copy)


def fingerprint(rows: object, first: int, count: int = 16) -> str:
    content = hashlib.sha256()
    for number in range(first, first + count):
        row = rows[number]
        for name in ("inputs", "targets", "loss_mask", "segment_ids", "positions"):
            content.update(row[name].astype("<i4").tobytes())
    return content.hexdigest()[:16]


GOLDEN = {
    "best_fit 0": ["81d0289df69f6e5d", "07d10412ed04cbab", "af2e775697a94245", "f8656ec925600121"],
    "best_fit 16": ["d5953e5bbbab15b0", "1720bc1d3f90149f", "e46899b74f253a5c", "4391d6a6ee3602d0"],
    "concat 0": ["e28c37cb1a9aa32f", "7780d74afc906a6a", "ca6ba523c10bfd0c", "52040ede5bdc1efa"],
    "crop 0": ["7583d4436634bc09", "437ea1307a954700", "0408abc7720938fe", "8b57e23822d160a5"],
    "pad 0": ["4280a4db9f17da88", "9f6d4b176e48cd0f", "add568a3c5a6c02a", "c81d3245253750dd"],
    "pad 16": ["cb85cf7227da3dc6", "84decc5c4ac8ef6f", "5fbc3d0ad5941a8f", "b9c7f5145c8e53e1"],
}
GOLDEN_MIXTURE = ["91853d2dd57b5005", "d5e0dac84920a7d8", "e311c1c28a8d0a28"]
GOLDEN_FIRST_INPUTS = [
    148,
    149,
    150,
    151,
    152,
    153,
    154,
    155,
    156,
    157,
    158,
    159,
    160,
    161,
    162,
    163,
]


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "crop", "pad"])
@pytest.mark.parametrize("overlap", [0, 16])
def test_rows_of_every_strategy(dataset: ConvertedDataset, strategy: str, overlap: int) -> None:
    if overlap and strategy in ("concat", "crop"):
        return
    rows = jaxdata.pack(
        dataset.source("train", "words"),
        seq_len=64,
        strategy=strategy,
        overlap=overlap,
        order=1,
        block_bytes=5000,
    )
    starts = [0, len(rows) - 16, len(rows), 5 * len(rows) + 7]
    found = [fingerprint(rows, start) for start in starts]
    assert found == GOLDEN[f"{strategy} {overlap}"]


def test_rows_of_a_mixture(dataset: ConvertedDataset) -> None:
    rows = {
        name: jaxdata.pack(dataset.source("train", name), seq_len=64, seed=3)
        for name in ("words", "masked")
    }
    mixed = jaxdata.mix(rows, phases=PHASES, epochs={"masked": 2})
    assert [fingerprint(mixed, start) for start in (0, 33, 54)] == GOLDEN_MIXTURE


def test_the_first_row_in_full(dataset: ConvertedDataset) -> None:
    rows = jaxdata.pack(dataset.source("train", "words"), seq_len=16, block_bytes=700)
    assert rows[0]["inputs"].tolist() == GOLDEN_FIRST_INPUTS


def test_writing_it_again_gives_the_same_bytes(tmp_path: Path) -> None:
    write_format_1(tmp_path / "again")
    for path in sorted(FORMAT_1.rglob("*")):
        if path.is_file() and path.name != "dataset.json":
            again = tmp_path / "again" / path.relative_to(FORMAT_1)
            assert again.read_bytes() == path.read_bytes(), path
    was, now = (
        json.loads((at / "dataset.json").read_bytes()) for at in (FORMAT_1, tmp_path / "again")
    )
    # Since then: checksums of the columns, of other files and of the manifest itself.
    assert now.pop("sha256")
    assert now.pop("files") == {}
    for entry in now["sources"].values():
        columns = ["anchor", "length", "origin_file", "origin_row", "page"]
        assert list(entry.pop("checksums")) == columns
    assert now == was


GOLDEN_BLOCKS = {
    ("best_fit", 0, None): "128715625a32ed2a",
    ("best_fit", 128, None): "9ff7a590a4e74182",
    ("best_fit", 0, 4): "2d5158e489baf009",
    ("concat", 0, None): "04a2bb48d76a2885",
    ("crop", 0, None): "2d46dad907e71837",
    ("pad", 0, None): "c3372c30e6a1a093",
}


def plan_digest(strategy: str, overlap: int, limit: int | None, **order: int) -> str:
    number = np.arange(20_000)
    lengths = number * number * 31 % 5_003 // (1 + number % 7)  # some of 0, some of three windows
    plan = pack_block(
        lengths, seq_len=2048, strategy=strategy, overlap=overlap, max_segments=limit, **order
    ).plan()
    columns = (plan.row_starts, plan.document, plan.start, plan.slots, plan.context)
    content = hashlib.sha256(b"".join(column.astype("<i8").tobytes() for column in columns))
    return content.hexdigest()[:16]


@pytest.mark.parametrize(("strategy", "overlap", "limit"), GOLDEN_BLOCKS)
def test_the_plan_of_a_whole_block(strategy: str, overlap: int, limit: int | None) -> None:
    assert plan_digest(strategy, overlap, limit) == GOLDEN_BLOCKS[strategy, overlap, limit]


# Order 2: the same documents, as `pack` makes rows by default.

POOLS: dict[str, Any] = {"chunk_bytes": 1024, "block_bytes": 8192, "lanes": 8}
LAYOUTS: dict[str, dict[str, Any]] = {"documents": {}, "pools": POOLS}
GOLDEN_2: dict[tuple[str, int, str], list[str]] = {
    ("best_fit", 0, "documents"): [
        "ba89aed72c28d64b",
        "49563908384fb687",
        "705da3eb934dc66c",
        "b737e76aa782cc5a",
    ],
    ("best_fit", 16, "documents"): [
        "3bd848da94fe454b",
        "30a589fc934b239e",
        "40ec5bb0725c5e66",
        "49ed86db1371344a",
    ],
    ("concat", 0, "documents"): [
        "a31663d4ff995e21",
        "ba76fe21a9549ca9",
        "26ee8e4cae7b21ee",
        "3fc568c8fb42d65c",
    ],
    ("crop", 0, "documents"): [
        "3d434e905cc625e5",
        "a054145fc7c7bf55",
        "0a1d2dc861fbca20",
        "884f37e4485a41e0",
    ],
    ("pad", 0, "documents"): [
        "f42387741371e0cd",
        "8a72a509206704f4",
        "a0c5bcf66454d949",
        "b2a929eee8d7eb8a",
    ],
    ("pad", 16, "documents"): [
        "179921a785b211cc",
        "7ecd248c5aaccc8e",
        "dc501d5bea84f94b",
        "b3078ba0c304e6a3",
    ],
    ("best_fit", 0, "pools"): [
        "9fee05f79ad10ae0",
        "9f35f97e24663d0f",
        "477beaea22a83952",
        "b088c3fe5e4ae829",
    ],
    ("best_fit", 16, "pools"): [
        "411b52a0d1aa4142",
        "676111c47873ea6d",
        "29bf0fc0556c20f1",
        "01693bb7848c46eb",
    ],
    ("concat", 0, "pools"): [
        "a752cc600215c4a2",
        "9ab111e515fc258a",
        "a169cc72bc961fa9",
        "18420381c7f931c6",
    ],
    ("crop", 0, "pools"): [
        "88d0f32acaf20501",
        "e48dccda5783d5be",
        "9ef61ac42a94024b",
        "24935b2293330617",
    ],
    ("pad", 0, "pools"): [
        "4ad654877abf898f",
        "6eaa814676fb1fcc",
        "17dbe06bca936277",
        "961a583dc7d9ace5",
    ],
    ("pad", 16, "pools"): [
        "b3e5e157650cd5c8",
        "6df5668c551abda5",
        "afc7a346cc0c7005",
        "17d04850b242b470",
    ],
}
GOLDEN_2_MIXTURE: dict[str, list[str]] = {
    "documents": ["65fcd82755dcd858", "3da4614a58666da3"],
    "pools": ["9a444ab0246d35d0", "01f7dab93a63e088"],
}
GOLDEN_2_BATCH: list[int] = [24, 32, 28, 26, 34, 30, 25, 33, 29, 27, 35, 31]
GOLDEN_2_MIXED_BATCH: list[int] = [28, 35, 29, 40, 34, 37, 32, 31, 36, 30, 41, 38, 39, 33]
GOLDEN_2_BLOCKS: dict[tuple[str, int, int | None], str] = {
    ("best_fit", 0, None): "b201891fe1fe2faf",
    ("best_fit", 128, None): "9e8c73d4ade7a688",
    ("best_fit", 0, 4): "01ebec493fc247df",
    ("concat", 0, None): "04a2bb48d76a2885",
    ("crop", 0, None): "2f746f688125a7a1",
    ("pad", 0, None): "c3372c30e6a1a093",
}


@pytest.mark.parametrize(("strategy", "overlap", "layout"), GOLDEN_2)
def test_rows_of_every_strategy_in_order_2(
    dataset: ConvertedDataset, strategy: str, overlap: int, layout: str
) -> None:
    rows = jaxdata.pack(
        dataset.source("train", "words"),
        seq_len=64,
        strategy=strategy,
        overlap=overlap,
        **LAYOUTS[layout],
    )
    starts = [0, len(rows) - 16, len(rows), 5 * len(rows) + 7]
    found = [fingerprint(rows, start) for start in starts]
    assert found == GOLDEN_2[strategy, overlap, layout]


def mixture_in_order_2(dataset: ConvertedDataset, layout: str) -> Any:
    rows = {
        name: jaxdata.pack(dataset.source("train", name), seq_len=64, seed=3, **LAYOUTS[layout])
        for name in ("words", "masked")
    }
    return jaxdata.mix(rows, phases=PHASES, epochs={"masked": 2})


@pytest.mark.parametrize("layout", GOLDEN_2_MIXTURE)
def test_rows_of_a_mixture_in_order_2(dataset: ConvertedDataset, layout: str) -> None:
    mixed = mixture_in_order_2(dataset, layout)
    found = [fingerprint(mixed, start, count) for start, count in ((0, 16), (0, len(mixed)))]
    assert found == GOLDEN_2_MIXTURE[layout]


def test_the_order_of_rows_inside_a_batch(dataset: ConvertedDataset) -> None:
    rows = jaxdata.pack(dataset.source("train", "words"), seq_len=64, **POOLS)
    assert jaxdata.Loader(rows, batch_size=12).batch_rows(2).tolist() == GOLDEN_2_BATCH
    mixed = mixture_in_order_2(dataset, "pools")
    assert jaxdata.Loader(mixed, batch_size=14).batch_rows(2).tolist() == GOLDEN_2_MIXED_BATCH


@pytest.mark.parametrize(("strategy", "overlap", "limit"), GOLDEN_2_BLOCKS)
def test_the_plan_of_a_whole_block_in_order_2(
    strategy: str, overlap: int, limit: int | None
) -> None:
    found = plan_digest(strategy, overlap, limit)
    assert found == GOLDEN_2_BLOCKS[strategy, overlap, limit]


def test_the_orders_differ_where_rows_mix_lengths() -> None:
    same = {key for key, digest in GOLDEN_BLOCKS.items() if GOLDEN_2_BLOCKS[key] == digest}
    assert same == {("concat", 0, None), ("pad", 0, None)}
