"""What somebody types first, right and wrong, in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from jaxdata.testing import write_dataset

"""names that the changelog says are gone"""


def test_what_is_not_a_dataset_or_rows_is_refused_by_what_it_is(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, {"train/web": [[5, 6, 0]]})
    with pytest.raises(DatasetError, match=r"nowhere is not a dataset: there is no such folder\. "):
        jaxdata.open_dataset("nowhere")
    for given in (dataset, dataset["train/web"], "folder"):
        with pytest.raises(InputError, match=f"given rows, not a {type(given).__name__}: pack a"):
            jaxdata.Loader(given, batch_size=1)
    with pytest.raises(InputError, match="mix: given a list, expected names and packed sources"):
        jaxdata.mix([jaxdata.pack(dataset["web"], seq_len=4)])  # type: ignore[arg-type]


def test_a_keyword_that_is_nearly_right_is_told(tmp_path: Path) -> None:
    rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 0]]), seq_len=4)
    with pytest.raises(TypeError, match=r"argument 'batchsize'; did you mean 'batch_size'\?"):
        jaxdata.Loader(rows, batchsize=2)  # type: ignore[call-arg]
    given: dict[str, Any] = {"output": tmp_path / "out", "source": "web", "tokenizer": "bytes"}
    with pytest.raises(TypeError, match=r"no argument 'min_char'; did you mean 'min_chars'\?"):
        jaxdata.convert([{"text": "a"}], **given, min_char=3)
    with pytest.raises(InputError, match=r"or bytes; did you mean 'bytes'\?$"):
        jaxdata.convert([{"text": "a"}], **given | {"tokenizer": "byte"})


def test_a_name_that_is_nearly_right_is_told() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_datset': did you mean 'open_dat"):
        _ = jaxdata.open_datset
    with pytest.raises(AttributeError, match=r"'jaxdata' has no attribute 'nothing'$"):
        _ = jaxdata.nothing
