"""States that were saved once: they restore for ever, with the same batches after them.

Each was taken after five steps; in `sizes_and_skips` two were followed by `skip(1, 25)` and
`skip(40, 50)`.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

import jaxdata
import jaxdata.rows.megatron
import jaxdata.torch
from tests.test_golden import CHUNKS, FORMAT_2, PHASES

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")
SAVED_STATES = Path(__file__).parents[1] / "data/states-2.json"


def packed(folder: Path, name: str, **settings: Any) -> Any:
    if not (folder / "data").exists():
        shutil.copytree(FORMAT_2, folder / "data")  # plans are written beside the data
    documents = jaxdata.open_dataset(folder / "data").source("train", name)
    return jaxdata.pack(documents, **{"seq_len": 64, **settings})


def mixed(folder: Path, on_exhaustion: str = "refuse", **settings: Any) -> Any:
    rows = {name: packed(folder, name, **settings) for name in ("words", "masked")}
    return jaxdata.mix(rows, phases=PHASES, epochs={"masked": 2}, on_exhaustion=on_exhaustion)


def plain(folder: Path) -> Any:
    return jaxdata.Loader(packed(folder, "words", block_bytes=4_096), batch_size=8)


def sizes_and_skips(folder: Path) -> Any:
    rows, ramp = packed(folder, "words", seed=3), [(0, 4), (20, 8), (60, 6)]
    return jaxdata.Loader(rows, batch_size=ramp, skip_rows=[(0, 2), (9, 13)])


def mixture(folder: Path) -> Any:
    return jaxdata.Loader(mixed(folder), batch_size=6)


def amended(folder: Path) -> Any:
    longer = {"words": packed(folder, "words", seq_len=96), "masked": packed(folder, "masked")}
    longer["masked"] = packed(folder, "masked", seq_len=96, overlap=8)
    rows = mixed(folder, "renormalize").amend(14, rows=longer).amend(38, epochs={"masked": 3})
    return jaxdata.Loader(rows, batch_size=6)


def transformed(folder: Path) -> Any:
    return jaxdata.Loader(packed(folder, "words").map(dict), batch_size=8, num_workers=1)


def megatron(folder: Path) -> Any:
    packed(folder, "words")
    documents = jaxdata.open_dataset(folder / "data").source("train", "words")
    return jaxdata.Loader(jaxdata.rows.megatron.gpt(documents, seq_len=64, seed=7), batch_size=8)


def streamed(folder: Path) -> Any:
    lines = [json.dumps({"text": f"document {number} " * (number % 7)}) for number in range(90)]
    (folder / "fixed.jsonl").write_text("\n".join(lines))
    settings = {"tokenizer": "bytes", "seq_len": 64, "batch_size": 4, "num_workers": 0}
    return jaxdata.stream_text(folder / "fixed.jsonl", buffer=20, epochs=None, **settings)


def in_torch(folder: Path) -> Any:
    return jaxdata.torch.Loader(mixed(folder), batch_size=6)


def lanes(folder: Path) -> Any:
    rows, ramp = packed(folder, "words", **CHUNKS), [(0, 4), (20, 8), (60, 6)]
    return jaxdata.Loader(rows.repeat(2), batch_size=ramp, skip_rows=[(0, 2), (9, 13)])


def mixture_in_lanes(folder: Path) -> Any:
    return jaxdata.Loader(mixed(folder, **CHUNKS), batch_size=6)


def amended_lanes(folder: Path) -> Any:
    """From single documents to lanes to other lanes, in the middle of each."""
    names, fewer = ("words", "masked"), CHUNKS | {"lanes": 2}
    chunks = {name: packed(folder, name, **CHUNKS) for name in names}
    longer = {name: packed(folder, name, seq_len=96, **fewer) for name in names}
    rows = mixed(folder, "renormalize").amend(14, rows=chunks).amend(38, rows=longer)
    return jaxdata.Loader(rows, batch_size=6)


def in_workers(folder: Path) -> Any:
    torch = jaxdata.torch.Loader(mixed(folder, **CHUNKS), batch_size=6)
    return StatefulDataLoader(torch, batch_size=None, num_workers=2)


MAKES = [plain, sizes_and_skips, mixture, amended, transformed, megatron, streamed, in_torch]
MAKES += [lanes, mixture_in_lanes, amended_lanes, in_workers]
MAKERS: dict[str, Callable[[Path], Any]] = {make.__name__: make for make in MAKES}


def state_of(one: Any) -> Any:
    return one.get_state() if hasattr(one, "get_state") else one.state_dict()


def restore(one: Any, state: Any) -> None:
    (one.set_state if hasattr(one, "set_state") else one.load_state_dict)(state)


def digest(batches: Iterator[Any]) -> str:
    content = hashlib.sha256()
    for batch in islice(batches, 3):
        for key in sorted(batch):
            content.update(key.encode() + np.asarray(batch[key]).astype("<i8").tobytes())
    return content.hexdigest()[:16]


SLOW = ("transformed", "in_workers")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MAKERS]
)
def test_it_restores_with_the_same_batches(tmp_path: Path, name: str) -> None:
    saved = json.loads(SAVED_STATES.read_text())[name]
    one = MAKERS[name](tmp_path)
    restore(one, saved["state"])
    if not name.endswith("in_workers"):  # before it iterates, that one only has what it was given
        assert state_of(one) == saved["state"]
    assert digest(iter(one)) == saved["next"]
    if hasattr(one, "close"):
        one.close()
