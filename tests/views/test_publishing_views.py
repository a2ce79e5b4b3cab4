"""How views are published: whole or not at all, the same bytes, and bound to their source."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.lease import leased
from jaxdata.format.manifest import MANIFEST
from jaxdata.format.mirroring import mirror
from jaxdata.format.storage import open_store
from jaxdata.format.verify import verify
from jaxdata.testing import distinct_documents, write_dataset
from jaxdata.views.source_view import SourceView, content_of, stacked
from jaxdata.views.writing import remove_views, write_views
from tests.views.made import convert_records, dropping, kept, masking, tree, write

LENGTHS = [3 + n % 7 for n in range(60)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "d", {"train/web": distinct_documents(LENGTHS)})
    return tmp_path / "d"


def manifest(folder: Path) -> dict:
    return json.loads((folder / MANIFEST).read_text())


def test_without_views_a_manifest_is_as_it_was(folder: Path) -> None:
    before = (folder / MANIFEST).read_bytes()
    assert "views" not in manifest(folder)["sources"]["train/web"]
    write(folder, dropping(60, 4))
    assert (folder / MANIFEST).read_bytes() != before
    assert remove_views(folder, "d1") == ["train/web"]
    assert (folder / MANIFEST).read_bytes() == before
    assert not [name for name in tree(folder) if "views" in name]


def test_equal_lists_make_equal_bytes_whatever_was_there(tmp_path: Path, folder: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    view = dropping(60, 4, 9, masked=masking((5, 0, 2), (1, 1, 3)))
    write(folder, view)
    write(other, dropping(60, *range(30)))  # made again, with other content
    write(other, dropping(60, 4, 9, masked=masking((1, 1, 2), (5, 0, 2), (1, 2, 3))))
    assert tree(folder) == tree(other)
    again = tree(folder)
    write(folder, view)
    assert tree(folder) == again


def test_who_reads_a_view_keeps_it_while_it_is_made_again(folder: Path) -> None:
    write(folder, dropping(60, 4))
    reading, expected = kept(folder), kept(folder)[10]["tokens"].tolist()
    _ = reading.lengths, reading.document
    write(folder, dropping(60, *range(20)))
    assert reading[10]["tokens"].tolist() == expected
    assert kept(folder)[0]["tokens"].tolist() != expected


KILLED = """
import sys, numpy as np
from tests.views.made import dropping, masking, write
from pathlib import Path
for number in range(10**6):
    print(number, flush=True)
    ranges = [(d, 0, 2) for d in range(30, 60)]
    write(Path(sys.argv[1]), dropping(60, *range(number // 2 % 2, 30, 2), masked=masking(*ranges)))
"""


def test_killed_at_any_moment_it_is_the_old_or_the_new_view(folder: Path) -> None:
    """A real process that makes two views in turn, each twice, with SIGKILL somewhere."""
    chance = np.random.default_rng(0)
    command = [sys.executable, "-c", KILLED, str(folder)]
    seen = set()
    for _ in range(5):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            for _ in range(2):
                process.stdout.readline()
            time.sleep(chance.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
        assert verify(folder).whole, str(verify(folder))
        if "views" in manifest(folder)["sources"]["train/web"]:
            seen.add(tuple(kept(folder).document.tolist()))
    lists = [dropping(60, *range(k, 30, 2)) for k in (0, 1)]
    expected = {tuple(np.concatenate(list(view.listed())).tolist()) for view in lists}
    assert seen
    assert seen <= expected
    # The same command finishes it, takes over the lease, and leaves nothing behind.
    write(folder, dropping(60, 1))
    fresh = folder.parent / "fresh"
    write_dataset(fresh, {"train/web": distinct_documents(LENGTHS)})
    write(fresh, dropping(60, 1))
    assert tree(folder) == tree(fresh)


def test_what_another_process_writes_is_refused(folder: Path) -> None:
    with leased(open_store(folder), ["train/web"]):
        with pytest.raises(DatasetError, match="is being written by another process"):
            write(folder, dropping(60, 4))
        with pytest.raises(InputError, match="has no view 'd1': it has none"):
            remove_views(folder, "d1")


def test_a_source_that_grew_needs_its_view_made_again(tmp_path: Path) -> None:
    records = [{"lang": "en"}] * 12
    folder = convert_records(tmp_path, records, keep=["lang"])
    before = jaxdata.open_dataset(folder).source("train", "web").fingerprint
    write(folder, dropping(12, 3))
    rows = jaxdata.pack(kept(folder), seq_len=64)
    state = jaxdata.Loader(rows, batch_size=2).get_state()
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "one more"}\n')
    made = {"source": "web", "tokenizer": "bytes", "workers": 1, "keep": ["lang"]}
    jaxdata.convert(more, output=folder, append=True, **made)
    dataset = jaxdata.open_dataset(folder)
    with pytest.raises(DatasetError) as refused:
        dataset.source("train", "web", documents="d1")
    assert "view 'd1' of train/web was made of another generation" in str(refused.value)
    assert "make it again, or read the source as it was then: generation=0" in str(refused.value)
    # A run under way goes on with the generation that it began with.
    old = dataset.source("train", "web", generation=0, documents="d1")
    jaxdata.Loader(jaxdata.pack(old, seq_len=64), batch_size=2).set_state(state)
    assert verify(folder).whole
    late = {"train/web": dropping(12, 3)}
    with pytest.raises(DatasetError, match="was changed while a view of it was made"):
        write_views(folder, "d2", late, parameters={}, made_of={"train/web": before})
    write(folder, dropping(13, 3))
    assert len(kept(folder)) == 12


def test_verify_and_mirror_know_views(tmp_path: Path, folder: Path) -> None:
    write(folder, dropping(60, 4, 9, masked=masking((5, 0, 2))))
    copy = tmp_path / "copy"
    mirror(folder, copy)
    assert tree(copy) == tree(folder)
    assert kept(copy)[3]["tokens"].tolist() == kept(folder)[3]["tokens"].tolist()
    column = next((copy / "train/web/views/d1").rglob("mask_stop/c/0"))
    content = bytearray(column.read_bytes())
    content[0] ^= 1
    column.write_bytes(content)
    found = verify(copy)
    assert not found.whole
    assert "mask_stop: its content differs from its checksum" in str(found)
    column.unlink()
    assert "mask_stop" in str(verify(copy))
    mirror(folder, copy)  # copies what is damaged
    assert verify(copy).whole
    write(folder, dropping(60, 4), "d2")
    remove_views(folder, "d1")
    mirror(folder, copy)  # a view more, and one less
    assert verify(copy).whole
    assert kept(copy, "d2").document.tolist() == kept(folder, "d2").document.tolist()


def test_verify_compares_a_list_with_its_source(folder: Path) -> None:
    """A column with its checksum, as a stranger may write it, still has to be of this source."""
    write(folder, dropping(60, 4))
    entry = manifest(folder)
    view = entry["sources"]["train/web"]["views"]["d1"]
    docs = kept(folder)
    lengths = docs.lengths + 1
    view["checksums"]["length"] = docs.view.store.write_array(docs.view.file("length"), lengths)
    del entry["sha256"]
    (folder / MANIFEST).write_text(json.dumps(entry))
    assert "its lengths are not those of its documents" in str(verify(folder))


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x" * 200, "ü"])
def test_names_are_those_of_folders(folder: Path, name: str) -> None:
    with pytest.raises(InputError, match="a view cannot be named"):
        write(folder, dropping(60, 4), name)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"dropped": np.array([4, 4])}, "dropped is not ascending"),
        ({"dropped": np.array([60])}, "dropped is out of range"),
        ({"reason": np.zeros(3, np.uint8)}, "reason is of another length"),
        ({"reason": np.array([2], np.uint8)}, "a reason has no name"),
        ({"reasons": []}, "a reason has no name"),
        ({"copies": np.zeros(60, np.uint8)}, "a document without copies is not dropped"),
        ({"copies": np.ones(59, np.uint8)}, "copies are of another number of documents"),
        ({"masked": masking((1, 5, 5))}, "a masked range is none"),
    ],
)
def test_what_cannot_be_a_view_is_refused(given: dict, problem: str) -> None:
    sound = {"documents": 60, "dropped": np.array([4]), "reasons": ["near", "where"]}
    with pytest.raises(InputError, match=problem):
        SourceView(**sound | given)


def test_stacking_keeps_the_reasons_of_both(folder: Path) -> None:
    lower = SourceView(
        documents=60,
        dropped=np.array([4, 9]),
        reasons=["near"],
        survivor_source=np.array([0, -1], np.int32),
        survivor=np.array([2, -1]),
        survivors=["train/web"],
        copies=np.where(np.arange(60) == 7, 3, 1),
        masked=masking((5, 0, 2))._replace(reason=np.zeros(1, np.uint8)),
    )
    write(folder, lower, "d1")
    upper = dropping(60, 9, 11, copies=np.full(60, 2), masked=masking((5, 2, 3), (6, 0, 1)))
    write(folder, stacked(content_of(kept(folder, "d1")), upper), "d2")
    docs = kept(folder, "d2")
    assert len(docs) == (60 - 3 + 2) * 2
    assert len(docs.numbers_of(7)) == 6
    fates = {d: docs.view.fate(d) for d in (4, 9, 11, 12)}
    assert fates[12] is None
    assert [fates[d].reason for d in (4, 9, 11)] == ["near"] * 3
    assert [fates[d].survivor for d in (4, 9, 11)] == [("train/web", 2), None, None]
    assert [range_[:3] for d in (5, 6) for range_ in docs.view.ranges_of(d)] == [
        (0, 3, "near"),
        (0, 1, "benchmark"),
    ]
    account = docs.view.entry.account
    assert account.kept.documents == 57
    assert account.listed.documents == len(docs)
    assert account.dropped["near"].documents == 3


def test_both_sides_of_pairs_get_one_list(tmp_path: Path) -> None:
    lengths = [5, 6, 7, 8, 9, 10]
    documents = distinct_documents(lengths)
    masks = [[0, 0, *[1] * (n - 2)] for n in lengths]
    names = ["train/ultra/chosen", "train/ultra/rejected", "train/web"]
    dataset = write_dataset(
        tmp_path, dict.fromkeys(names, documents), dict.fromkeys(names[:2], masks)
    )
    made_of = {name: dataset[name].fingerprint for name in names}
    one = {names[0]: dropping(6, 2, copies=np.array([1, 1, 1, 2, 3, 1]))}
    made = write_views(tmp_path, "d1", one, parameters={}, made_of=made_of)
    assert sorted(made) == names[:2]
    sides = {names[0]: dropping(6, 2), names[1]: dropping(6, 4), names[2]: dropping(6, 0)}
    write_views(tmp_path, "d2", sides, parameters={}, made_of=made_of)
    opened = jaxdata.open_dataset(tmp_path)

    def side(name: str, view: str | None) -> jaxdata.documents.base.Documents:
        return opened.source("train", f"ultra/{name}", documents=view)

    for view, listed in (("d1", [0, 1, 3, 3, 4, 4, 4, 5]), ("d2", [0, 1, 3, 5])):
        both = [side(name, view) for name in ("chosen", "rejected")]
        assert [each.document.tolist() for each in both] == [listed, listed]
        rows = jaxdata.pairs(*both, seq_len=12)
        assert len(rows) == len(listed)
        assert rows.identity()["views"] == {names[0]: view, names[1]: view}
    assert len(opened.source("train", "web", documents="d2")) == 5
    with pytest.raises(InputError, match=r"through the view 'd1' and .* through no view list diff"):
        jaxdata.pairs(side("chosen", "d1"), side("rejected", None), seq_len=12)
    with pytest.raises(InputError, match="both sides of a pair need the same view"):
        jaxdata.pairs(side("chosen", "d1"), side("rejected", "d2"), seq_len=12)
