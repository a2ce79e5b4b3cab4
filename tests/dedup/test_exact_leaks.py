"""`preview --leaks`: held-out documents that are trained, too, found before a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.opening import open_dataset
from jaxdata.dedup.leaks import _remedy, exact_leaks
from jaxdata.tokenizers import load
from tests.commands import run
from tests.dedup.planted import find, made, prose

HELD_OUT = [prose(seed) for seed in range(5)]


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sources with held-out texts, one of them in both; near copies do not count."""
    sources = {
        "train/web": [prose(20, 20), HELD_OUT[0], HELD_OUT[1], HELD_OUT[1], HELD_OUT[3] + " More."],
        "train/wiki": [HELD_OUT[1], HELD_OUT[2].upper(), HELD_OUT[4]],
        "val/web": [*HELD_OUT, HELD_OUT[0]],
    }
    monkeypatch.chdir(tmp_path)
    data = made(tmp_path, sources)
    Path("run.yaml").write_text(json.dumps({"dataset": str(data), "pack": {"seq_len": 64}}))
    return data


def test_leaks_are_counted_and_warned_of(dataset: Path, tmp_path: Path) -> None:
    said = json.loads(run("preview", "--config", "run.yaml", "--leaks", "--json").stdout)
    (check,) = [each for each in said["checks"] if each["name"] == "leaks"]
    first, second, third = check["says"].split("\n")
    assert (check["ok"], check["mark"]) == (True, "leaks")
    # Copies of what is held out, and the upper-case text, which has the length of another.
    read = [*HELD_OUT, HELD_OUT[0], *HELD_OUT[:2], *HELD_OUT[1:3], HELD_OUT[1], HELD_OUT[4]]
    tokens = sum(len(text.encode()) + 1 for text in read)
    assert first == (
        "4 of 6 documents of val are also in train (exact; "
        f"{tokens:,} tokens read; near copies were not looked for)"
    )
    assert second == "3 in train/web, 2 in train/wiki"
    remedy = f"jaxdata dedup {dataset} --sources web,wiki --against val --output-name d1"
    assert third == f"to leave them out: {remedy}, then documents: d1"
    find(dataset, sources=["web", "wiki"], against=["val"])
    said = run("preview", "--config", "run.yaml", "--leaks", "--documents", "d1").stdout
    assert "ok      leaks     0 of 6 documents of val are also in train (exact; " in said
    plain = run("preview", "--config", "run.yaml").stdout
    assert "are also in" not in plain, "nothing is read unless asked"
    assert "whether there are exact ones: jaxdata preview --leaks" in plain


def test_through_a_view_the_remedy_goes_on_from_it(dataset: Path) -> None:
    jaxdata.select(dataset, "d1", where="tokens > 3", sources=["web"])
    opened = open_dataset(dataset).with_views({"train/web": "d1"})
    found = exact_leaks(opened, ["train/web"], ["val/web"])
    assert found.remedy.endswith(
        "--against val --documents d1 --output-name d2, then documents: d2"
    )


def test_more_than_is_read_is_said(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = exact_leaks(open_dataset(dataset), ["train/web"], ["val/web"], most=100)
    assert (found.compared, found.leaked, found.by_source) == (False, 0, {})
    whole = exact_leaks(open_dataset(dataset), ["train/web"], ["val/web"])
    assert (whole.most, whole.read) == (2**28, found.read)
    assert exact_leaks(open_dataset(dataset), ["train/web"], ["val/web"], most=whole.read).compared
    (line,) = found.lines()
    assert line.startswith(f"not looked for: that would read {found.read:,} tokens, and this check")
    assert "reads up to 100. To find and leave out exact and near copies: jaxdata dedup" in line
    monkeypatch.setattr("jaxdata.dataset.converted.ConvertedDocuments.tokens", None)
    assert exact_leaks(open_dataset(dataset), ["train/web"], ["val/web"], most=100) == found


class InMemory(Dataset):
    """Lists of ids as sources."""

    tokenizer = load("bytes")
    eod_id = 0
    url = "memory"

    def __init__(self, sources: dict[str, list[list[int]]]) -> None:
        self._sources = sources

    @property
    def names(self) -> list[str]:
        return [*self._sources]

    def _open(self, name: str, generation: int | None) -> Documents:
        del generation
        return jaxdata.ArrayDocuments([[*one, 0] for one in self._sources[name]], name=name)


documents = st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=12)


@given(documents, documents, st.integers(1, 20))
def test_as_brute_force_counts(
    trained: list[list[int]], held_out: list[list[int]], at_once: int
) -> None:
    """However reads are cut; a document of a single token is none."""
    dataset = InMemory({"train/a": trained, "val/a": held_out})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxdata.dedup.leaks._AT_ONCE", at_once)
        found = exact_leaks(dataset, ["train/a"], ["val/a"])
    assert found.leaked == sum(bool(one) and one in trained for one in held_out)
    assert found.held_out == len(held_out)


def test_the_remedy_names_the_sources_that_leak_and_their_split() -> None:
    sources = {"ft/a": [[1]], "ft/b": [[2]], "ft/c": [[3]], "val/a": [[2], [3], [1, 1], [2]]}
    dataset = InMemory(sources)
    trained = ["ft/a", "ft/b", "ft/c"]
    found = exact_leaks(dataset, trained, ["val/a"])
    assert (found.leaked, found.by_source) == (3, {"ft/b": 2, "ft/c": 1})
    ends = "--against val --output-name d1, then documents: d1"
    assert found.remedy == f"jaxdata dedup DATASET --split ft --sources b,c {ends}"
    none = exact_leaks(dataset, trained[:1], ["val/a"])
    assert none.remedy == f"jaxdata dedup DATASET --split ft --sources a {ends}"
    for views, below in (({"ft/b": "v", "ft/c": "v"}, "--documents v "), ({"ft/b": "v"}, "")):
        dataset.views = views
        said = f"--split ft --sources b,c {ends}".replace("--output", f"{below}--output")
        assert _remedy(dataset, trained[1:], ["val/a"]) == f"jaxdata dedup DATASET {said}"
