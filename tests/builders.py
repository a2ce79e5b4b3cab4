"""What tests read and train on: documents, a dataset on disk, and a run.

documents(3)                                     # three arrays of token ids, no id twice
dataset(tmp_path / "d", {"web": 300, "code": [5, 40]})
path = run(tmp_path, {"web": 300}, pack={"seq_len": 64}, loader={"batch_size": 8})
loader = jaxdata.load(path)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from jaxdata.testing import distinct_documents, write_dataset

Given = int | Sequence[int] | Sequence[ArrayLike]
"""so many documents, or their lengths, or the documents themselves"""


def documents(
    given: Given, *, longest: int = 60, seed: int = 0, first: int = 1
) -> list[NDArray[Any]]:
    """Documents of 1 to `longest` tokens, each token an id of its own from `first` on."""
    if isinstance(given, int):
        given = np.random.default_rng(seed).integers(1, longest + 1, given).tolist()
    if len(given) and np.ndim(given[0]):
        return [np.asarray(document) for document in given]
    return distinct_documents(given, first)


def dataset(folder: Path, sources: Mapping[str, Given], **options: Any) -> Path:
    """Write sources as a converter would; a name without a split is in `train`, as its masks are.

    No token id is in two sources, unless documents are given. The options are `write_dataset`'s.
    """
    made, first = {}, 1
    for name, given in sources.items():
        made[_of_split(name)] = found = documents(given, seed=len(made), first=first)
        first = 1 + max([first - 1, *(int(np.max(document, initial=0)) for document in found)])
    for kind in ("masks", "side"):
        if kind in options:
            options[kind] = {_of_split(name): value for name, value in options[kind].items()}
    write_dataset(folder, made, **options)
    return folder


def run(folder: Path, sources: Mapping[str, Given] | None = None, **sections: Any) -> Path:
    """Write `run.yaml` with these sections; with sources, also the dataset `d` that it reads."""
    if sources is not None:
        sections["dataset"] = str(dataset(folder / "d", sources))
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(sections, sort_keys=False))
    return path


def _of_split(name: str) -> str:
    return name if "/" in name else f"train/{name}"
