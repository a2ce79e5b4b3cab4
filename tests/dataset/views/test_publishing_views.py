"""How views are published: whole or not at all, the same bytes, and bound to their source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.lease import leased
from jaxdata.dataset.manifest import read_manifest
from jaxdata.dataset.views.kept_documents import views_of
from jaxdata.dataset.views.writing import remove_views, write_views
from jaxdata.storage import open_store
from jaxdata.testing import distinct_documents, write_dataset
from tests.converter.here import run_here
from tests.dataset.trees import tree
from tests.dataset.views.made import convert_records, dropping, kept, masking, write

LENGTHS = [3 + n % 7 for n in range(60)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "d", {"train/web": distinct_documents(LENGTHS)})
    return tmp_path / "d"


def test_equal_lists_make_equal_bytes_whatever_was_there(tmp_path: Path, folder: Path) -> None:
    other, before = Path(shutil.copytree(folder, tmp_path / "other")), tree(folder)
    view = dropping(60, 4, 9, masked=masking((5, 0, 2), (1, 1, 3)))
    write(folder, view)
    write(other, dropping(60, *range(30)))  # made again, with other content
    write(other, dropping(60, 4, 9, masked=masking((1, 1, 2), (5, 0, 2), (1, 2, 3))))
    assert tree(folder) == tree(other)
    again = tree(folder)
    write(folder, view)
    assert tree(folder) == again
    assert remove_views(folder, "d1") == ["train/web"]
    assert tree(folder) == before, "without views all is as it was"


def test_who_reads_a_view_keeps_it_while_it_is_made_again(folder: Path) -> None:
    write(folder, dropping(60, 4))
    reading, expected = kept(folder), kept(folder)[10]["tokens"].tolist()
    _ = reading.lengths, reading.document
    write(folder, dropping(60, *range(20)))
    assert reading[10]["tokens"].tolist() == expected
    assert kept(folder)[0]["tokens"].tolist() != expected


def test_what_another_process_writes_is_refused(folder: Path) -> None:
    with leased(open_store(folder), ["train/web"]):
        with pytest.raises(DatasetError, match="is being written by another process"):
            write(folder, dropping(60, 4))
        with pytest.raises(InputError, match="has no view 'd1': it has none"):
            remove_views(folder, "d1")


def test_a_source_that_grew_needs_its_view_made_again(tmp_path: Path) -> None:
    folder = convert_records(tmp_path, [{}] * 12)
    before = jaxdata.open_dataset(folder).source("train", "web").fingerprint
    write(folder, dropping(12, 3))
    (tmp_path / "more.jsonl").write_text('{"text": "one more"}\n')
    run_here(tmp_path / "more.jsonl", folder, append=True)
    dataset = jaxdata.open_dataset(folder)
    said = "'d1' of train/web was made of another generation .* make it again, or read .*: generati"
    with pytest.raises(DatasetError, match=said):
        dataset.source("train", "web", documents="d1")
    store = open_store(folder)
    assert [view.total for view in views_of(store, read_manifest(store))] == [12]
    assert len(dataset.source("train", "web", generation=0, documents="d1")) == 11
    late = {"train/web": dropping(12, 3)}
    with pytest.raises(DatasetError, match="was changed while a view of 12 docum"):
        write_views(folder, "d2", late, parameters={}, made_of={"train/web": before})


def test_both_sides_of_pairs_get_one_list(tmp_path: Path) -> None:
    names = ["train/ultra/chosen", "train/ultra/rejected", "train/web"]
    documents = distinct_documents([5, 6, 7, 8, 9, 10])
    masks = [[0, 0, *[1] * (len(each) - 2)] for each in documents]
    sources = dict.fromkeys(names, documents)
    dataset = write_dataset(tmp_path, sources, dict.fromkeys(names[:2], masks))
    made_of = {name: dataset[name].fingerprint for name in names}
    one = {names[0]: dropping(6, 2, copies=np.array([1, 1, 1, 2, 3, 1]))}
    assert sorted(write_views(tmp_path, "d1", one, parameters={}, made_of=made_of)) == names[:2]
    sides = {names[0]: dropping(6, 2), names[1]: dropping(6, 4), names[2]: dropping(6, 0)}
    write_views(tmp_path, "d2", sides, parameters={}, made_of=made_of)
    opened = jaxdata.open_dataset(tmp_path)
    for view, listed in (("d1", [0, 1, 3, 3, 4, 4, 4, 5]), ("d2", [0, 1, 3, 5])):
        both: list[Any] = [opened.source("train", name[6:], documents=view) for name in names[:2]]
        assert [each.document.tolist() for each in both] == [listed, listed]
        assert len(jaxdata.pairs(*both, seq_len=12)) == len(listed)
    for other, says in ((None, "list different documents"), ("d1", "need the same view")):
        rejected = opened.source("train", "ultra/rejected", documents=other)
        with pytest.raises(InputError, match=says):
            jaxdata.pairs(both[0], rejected, seq_len=12)
