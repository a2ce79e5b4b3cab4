"""What may be damaged: folders of every kind that jaxdata reads, and who says what is wrong."""

import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import tokenizers as hf

import jaxdata
import jaxdata.rows.megatron
from jaxdata.base.errors import DatasetError
from jaxdata.converter import conversion_run
from jaxdata.dataset.lease import HISTORY
from jaxdata.dataset.verify import verify
from jaxdata.dataset.views.source_view import SourceView, TokenRanges
from jaxdata.dataset.views.writing import write_views
from jaxdata.foreign.materialize import verify_rows
from jaxdata.train.checkpoint import check_newest, write_checksums
from tests.builders import dataset as write, documents
from tests.converter.here import objects, run_here as convert, write_lines

Lists = dict[str, list[Any]]
"""name -> documents, rows, or whatever else somebody reads, one after the other"""


class Specimen(NamedTuple):
    """A kind of folder.

    Attributes:
        make: makes a whole one.
        read: everything that runs and people read of it.
        look: the names of the files that are damaged, as far as a look at all of them tells.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], Lists]
    look: Callable[[Path], str] = lambda _: ""


def files_of(folder: Path) -> list[str]:
    """All files but the history, which only says how they came about."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != HISTORY)
    return [path.relative_to(folder).as_posix() for path in found]


def part_of(name: str) -> str:
    """What a file is called by: of a column, its folder; of what describes others, theirs."""
    name = name.partition("/c/")[0].removesuffix("/zarr.json")
    name = re.sub(r"^(checksums|checkpoints)/(\d+)(/.*|\.json)", r"checkpoints/\2", name)
    return re.sub(r"/?work/(parameters|recipe)\.json$", "", name)


@contextmanager
def copied(whole: Path) -> Iterator[Path]:
    """Links to all files, for those who replace a file rather than write into it."""
    copy = whole.with_name(f"{whole.name}-copy")
    shutil.copytree(whole, copy, copy_function=os.link)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def _tokenizer(folder: Path) -> str:
    folder.mkdir()
    library = hf.Tokenizer(hf.models.WordLevel({c: i for i, c in enumerate("?abcdefg.")}, "?"))
    library.pre_tokenizer = hf.pre_tokenizers.Whitespace()
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "."}')
    return f"hf:{folder}"


def make_dataset(folder: Path) -> None:
    """With each kind of file there is: two generations, splits, masks, side arrays, a view, …"""
    work = folder.with_name(f"{folder.name}-inputs")
    (work / "in").mkdir(parents=True)
    given = {"record_tokens": 16, "tokenizer": _tokenizer(work / "words")}

    def record(number: int, *keys: str) -> dict[str, Any]:
        text = "a b c d e f g "[number % 3 :] * (1 + number % 5) + "c " * number
        return dict.fromkeys(keys, text) | {"url": f"http://{number}"}

    def lines(name: str, *each: dict[str, Any]) -> Path:
        return write_lines(work / name, objects(*each))

    for part in range(2):
        texts = (record(number, "text") for number in range(part * 12, part * 12 + 12))
        file = lines(f"{part}.jsonl", *texts, {"bad": 1})
        with tarfile.open(work / f"in/{part}.tar", "w") as archive:
            archive.add(file, file.name)
        more = {"keep": ("url",), "append": True, "unit_bytes": 300, "minhash": True}
        convert(work / "in", folder, split_ratio="train=8,val=2", **given, **more)
    pairs = lines("sft.jsonl", *(record(n, "prompt", "completion") for n in range(5)))
    convert(pairs, folder, source="sft", task="sft", **given)
    ids = lines("i.jsonl", *({"input_ids": [1] * n, "w": [n] * n} for n in range(20, 25)))
    convert(ids, folder, source="ids", task="ids", keep_per_token="w:int8", **given)
    kept: Any = {"masked": TokenRanges.of(*np.array([[0, 3], [0, 2], [2, 9]]))}
    kept |= {"documents": 5, "cut": TokenRanges.of(*np.array([[2], [3], [6]]))}
    gone: Any = {"dropped": np.array([1, 4]), "reasons": ["near"], "survivors": ["train/web"]}
    gone |= {"survivor_source": np.array([0, -1], np.int32), "survivor": np.array([2, -1])}
    view = SourceView(**kept, **gone)
    write_views(folder, "d1", {"train/sft": view}, parameters={"command": "dedup"}, made_of={})
    read_dataset(folder)  # plans


def read_dataset(folder: Path) -> Lists:
    """All sources, Megatron's rows of one, and texts."""
    dataset, found = jaxdata.open_dataset(folder), read_sources(folder)
    order = jaxdata.rows.megatron.gpt(dataset.source("train", "sft"), seq_len=16)
    found["megatron"] = [order[number]["inputs"].tolist() for number in range(len(order))]
    web = dataset.source("train", "web")
    return found | {"text": [dataset.decode(web[number]["tokens"]) for number in range(9)]}


def _read_source(dataset: Any, name: str, view: str | None) -> Lists:
    source = dataset.source(*name.split("/", 1), documents=view)
    for number in range(len(source.base) if view else 0):
        source.view.fate(number)
        source.view.ranges_of(number)
    tokens = []
    for number in range(len(source)):
        source.origin(number)
        source.kept(number)
        tokens.append({key: array.tolist() for key, array in source[number].items()})
    rows = jaxdata.pack(source, seq_len=32)
    inputs = [rows[number]["inputs"].tolist() for number in range(len(rows))]
    return {f"{name} {view}": tokens, f"rows of {name} {view}": inputs}


def damage_of(folder: Path) -> str:
    return "\n".join(map(str, verify(folder, threads=1).damage))


def make_rows(folder: Path) -> None:
    """With lanes, so that the order in a batch has a column."""
    source = jaxdata.ArrayDocuments(documents([20, 9, 33] * 8), name="train/web")
    rows = jaxdata.pack(source, seq_len=16, chunk_bytes=100, block_bytes=200, lanes=8)
    jaxdata.materialize(rows, folder, shard_rows=10, workers=1)


def read_rows(folder: Path) -> Lists:
    """Every array of every row, and the order in which a loader would take them."""
    rows = jaxdata.open_rows(folder)
    loader = jaxdata.Loader(rows, batch_size=8)
    found = [{name: array.tolist() for name, array in row.items()} for row in rows]
    order = [loader.batch_rows(step).tolist() for step in range(len(loader))]
    return {"rows": found, "order": order}


def damage_of_rows(folder: Path) -> str:
    return "\n".join(map(str, verify_rows(folder, threads=1).damage))


def begin_conversion(folder: Path) -> None:
    """Killed before it published its units, one record of them bad."""
    lines = [{"text": "a b " * k, "url": f"u{k}"} for k in range(1, 9)]
    file = write_lines(folder.with_name("in.jsonl"), objects(*lines, {"bad": 1}, {"text": "c"}))
    killed = mock.patch.object(conversion_run.Conversion, "_publish", side_effect=KeyError)
    with killed, pytest.raises(KeyError):
        convert(file, folder, unit_bytes=60, keep=("url",))


def finish_conversion(folder: Path) -> Lists:
    convert(folder.with_name("in.jsonl"), folder, unit_bytes=60, keep=("url",))
    if said := damage_of(folder):
        raise DatasetError(said)
    return _read_source(jaxdata.open_dataset(folder), "train/web", None)


def make_checkpoints(folder: Path) -> None:
    """As much of them as whoever compares them needs: files, and the checksums of these."""
    for step in (8, 16):
        (folder / f"checkpoints/{step}/weights").mkdir(parents=True)
        for name in ("weights/0", "weights/1", "state"):
            (folder / f"checkpoints/{step}/{name}").write_bytes(bytes([step]) * 500)
        write_checksums(folder / "checkpoints", step)


def read_checkpoints(folder: Path) -> Lists:
    """The files of the checkpoint that a run goes on from."""
    check_newest(folder / "checkpoints")
    newest = folder / "checkpoints/16"
    return {"16": [(newest / name).read_bytes() for name in files_of(newest)]}


def make_small(folder: Path) -> None:
    """Two sources of 20 documents in two shards, some documents in two records."""
    given = {"web": [5, 9, 30, 2, 17] * 4, "code": [5, 9, 30, 2, 17] * 4}
    write(folder, given, shard_documents=12, record_tokens=16)


def read_sources(folder: Path) -> Lists:
    """The documents of all sources and views, and their rows."""
    dataset, found = jaxdata.open_dataset(folder), {}
    for name, entry in sorted(dataset.manifest.sources.items()):  # type: ignore[attr-defined]
        for view in (None, *entry.views):
            found |= _read_source(dataset, name, view)
    return found


SMALL = Specimen(make_small, read_sources, damage_of)
SPECIMENS = {
    "dataset": Specimen(make_dataset, read_dataset, damage_of),
    "rows": Specimen(make_rows, read_rows, damage_of_rows),
    "conversion": Specimen(begin_conversion, finish_conversion),
    "checkpoints": Specimen(make_checkpoints, read_checkpoints),
}
