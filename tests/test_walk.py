"""How far a reader has to walk: the files that one batch of a plain mixture enters."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import jaxdata
from jaxdata.testing import distinct_documents, write_dataset

PACKAGE = Path(jaxdata.__file__).parent


def entered(work: Callable[[], Any]) -> list[str]:
    """The files of the package whose functions `work` calls."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    gc.collect()
    gc.disable()  # else it may close here what earlier tests left open
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    inside = (Path(file) for file in files if file.startswith(str(PACKAGE)))
    return sorted(str(file.relative_to(PACKAGE)) for file in inside)


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_batch_of_a_mixture_is_a_short_walk(tmp_path: Path, on_disk: bool) -> None:
    """Of documents on disk, the index and the shards are opened when they are first read."""
    documents = distinct_documents([100, 30, 7, 60] * 50)
    names = ("train/web", "train/code")
    sources: dict[str, Any] = {n: jaxdata.ArrayDocuments(documents, name=n) for n in names}
    if on_disk:
        dataset = write_dataset(tmp_path, dict.fromkeys(names, documents))
        sources = {name: dataset.source(*name.split("/")) for name in names}
    rows = {name: jaxdata.pack(docs, seq_len=64) for name, docs in sources.items()}
    mixed = jaxdata.mix(rows, weights={"train/web": 0.7, "train/code": 0.3})
    loader = jaxdata.Loader(mixed, batch_size=4, num_workers=0, prefetch=0)
    walks = [entered(lambda: next(loader)) for _ in range(4)]
    assert len(walks[0]) <= 20, "\n".join(walks[0])
    # Batches are planned in groups: the second begins a group of two, the third is in it.
    assert len(walks[2]) <= 8, "\n".join(walks[2])
