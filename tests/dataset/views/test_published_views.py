"""Views as they are published, whole or not at all, and the runs that read them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import ConfigError, DatasetError, InputError, StateMismatch
from jaxdata.dataset.manifest import read_manifest
from jaxdata.dataset.views.kept_documents import views_of
from jaxdata.dataset.views.writing import remove_views, write_views
from jaxdata.storage import open_store
from jaxdata.testing import assert_exactly_once, assert_same_batches, write_dataset
from tests import builders, commands
from tests.converter.here import run_here, tree
from tests.dataset.views.made import convert_records, dropping, kept, masking, write

LENGTHS = [4 + n % 9 for n in range(80)]
COPIES = np.where(np.arange(80) % 5 == 1, 3, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two training sources, of which `web` has the view d1, and `wiki` none."""
    documents = builders.documents(LENGTHS)
    sources = {"train/web": documents, "train/wiki": documents[:40], "val/web": documents[:9]}
    write_dataset(tmp_path / "d", sources, shard_documents=30)
    view = dropping(80, *range(0, 80, 4), 79, copies=COPIES, masked=masking((1, 0, 3), (6, 2, 5)))
    write(tmp_path / "d", view)
    return tmp_path / "d"


def config(folder: Path, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"dataset": str(folder), "pack": {"seq_len": 16}}
    made["curriculum"] = {"rows": 30, "mix": {"web": 1.0}}
    made["loader"] = {"batch_size": 3, "prefetch": 0}
    return made | fields


def test_a_config_names_views_for_all_some_or_one_of_several(folder: Path) -> None:
    def whole_epoch(**fields: Any) -> Any:
        return jaxdata.load(config(folder, curriculum=None, **fields))

    dataset = jaxdata.open_dataset(folder)
    loader = whole_epoch(documents={"web": "d1"})
    assert loader.get_state()["run"]["views"] == {"web": "d1"}
    assert_exactly_once(loader, [kept(folder), dataset["train/wiki"]])
    evaluated = jaxdata.load(config(folder, documents="d1"), split="val")
    assert_exactly_once(evaluated, [dataset["val/web"]])
    with pytest.raises(InputError, match=r"train/wiki has no view 'd1': it has none"):
        whole_epoch(documents="d1")
    with pytest.raises(ConfigError, match="documents names the source 'wbe'"):
        whole_epoch(documents={"wbe": "d1"})
    web = {"dataset": str(folder), "source": "web"}
    several = {"dataset": None, "sources": {"one": web | {"documents": "d1"}, "two": web}}
    assert_exactly_once(whole_epoch(**several), [kept(folder), dataset["train/web"]])
    top = whole_epoch(**several, documents="d1")
    assert top.get_state()["run"]["views"] == {"one": "d1", "two": "d1"}


def test_a_state_is_of_its_view(folder: Path) -> None:
    state = jaxdata.load(config(folder, documents="d1")).get_state()
    said = r"views\[web\] was 'd1', is absent: read the view that"
    with pytest.raises(StateMismatch, match=said):
        jaxdata.load(config(folder)).set_state(state)
    write(folder, dropping(80, 5))  # the same name, made again
    with pytest.raises(StateMismatch, match=r"data\[web\] was"):
        jaxdata.load(config(folder, documents="d1")).set_state(state)


def test_the_commands_name_views(tmp_path: Path) -> None:
    folder = convert_records(tmp_path, [{"lang": "en"}] * 30, keep=["lang"])
    write(folder, dropping(30, 3, 4, cut=masking((6, 3, 5))))
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config(folder, curriculum={"rows": 20, "mix": {"web": 1.0}})))

    def run(*arguments: str | Path) -> str:
        return commands.run(*arguments, "--documents", "d1").stdout

    said = run("preview", path)
    assert "web is read through view d1, which lists 29 documents" in said
    assert "ok      views     1 list of kept documents, as written" in said
    for of in (path, folder):
        said = run("inspect", of, "--document", "train/web:3")
        assert "not trained with view d1: near" in said
    run("export", path, "--output", tmp_path / "rows")
    rows, loader = jaxdata.open_rows(tmp_path / "rows"), jaxdata.load(path, documents="d1")
    assert_same_batches([*rows], [*loader.rows])


def test_equal_lists_make_equal_bytes_whatever_was_there(tmp_path: Path) -> None:
    folder = builders.dataset(tmp_path / "d", {"web": [3 + n % 7 for n in range(60)]})
    other, before = Path(shutil.copytree(folder, tmp_path / "other")), tree(folder)
    view = dropping(60, 4, 9, masked=masking((5, 0, 2), (1, 1, 3)))
    write(folder, view)
    write(other, dropping(60, *range(30)))  # made again, with other content
    write(other, dropping(60, 4, 9, masked=masking((1, 1, 2), (5, 0, 2), (1, 2, 3))))
    assert tree(folder) == tree(other)
    again = tree(folder)
    with pytest.raises(InputError, match=r"a view cannot be named '\.\./up': expected"):
        write(folder, view, "../up")
    write(folder, view)
    assert tree(folder) == again
    assert remove_views(folder, "d1") == ["train/web"]
    assert tree(folder) == before, "without views all is as it was"


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
    documents = builders.documents([5, 6, 7, 8, 9, 10])
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
