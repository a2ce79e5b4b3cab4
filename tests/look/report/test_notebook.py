"""What a shell and a notebook show of our objects: a line, or a small escaped table."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError
from jaxdata.base.wording import table_html
from jaxdata.testing import write_dataset
from jaxdata.tokenizers import load
from tests.look.report.conftest import Element, Tree

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x00&"
DATA = Path(__file__).parents[2] / "data" / "format-2"


class Shown:
    """The tags, the names of attributes and the texts of some HTML, whose tags are closed."""

    def __init__(self, html: str) -> None:
        every = [*_within(Tree(html).open[0])]
        self.tags = {each.tag for each in every[1:]}
        self.attributes = {name for each in every for name in each.attributes}
        self.texts = [text for each in every for text in each.texts]


def _within(element: Element) -> Iterator[Element]:
    yield element
    for child in element.children:
        yield from _within(child)


ALLOWED = {
    *("div", "strong", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "rect", "title", "span", "pattern"),
}


def rows(name: str = "train/web") -> Any:
    lengths = np.random.default_rng(2).integers(2, 40, 60)
    documents = [np.append(np.arange(1, length), 0) for length in lengths]
    return jaxdata.pack(jaxdata.ArrayDocuments(documents, name=name), seq_len=16)


def mixed() -> Any:
    phases = [
        jaxdata.Phase(rows=20, weights={HOSTILE: 3, "b": 1}),
        jaxdata.Phase(weights={"b": 1}),
    ]
    both = {HOSTILE: rows(HOSTILE), "b": rows("b")}
    return jaxdata.mix(both, phases=phases, on_exhaustion="renormalize")


SOME = rows()
BATCH = next(jaxdata.Loader(SOME, batch_size=4))
LINES: list[tuple[Callable[[], Any], str]] = [
    (lambda: jaxdata.open_dataset(DATA), r"ConvertedDataset\('.*', \{'train'"),
    (
        lambda: jaxdata.open_dataset(DATA).source("train", "words"),
        r"ConvertedDocuments\('train/words', 120 documents\)",
    ),
    (lambda: jaxdata.ArrayDocuments([[1, 2, 0]]), r"ArrayDocuments\('documents', 1 document"),
    (rows, r"PackedDataset\(\d+ rows of 16, best_fit of 'train/web'\)$"),
    (lambda: SOME.plan, r"PackSummary\(documents=60, rows=\d+, "),
    (lambda: SOME.repeat(2), r"RowDataset\(\d+ rows of 16, "),
    (mixed, r"MixedDataset\(\d+ rows of 16, .*, b in 2 phases\)$"),
    (lambda: jaxdata.Phase(rows=3, weights={"w": 1}), r"Phase\(rows=3, weights=\{'w': 1\}\)$"),
    (lambda: jaxdata.Loader(SOME, batch_size=4), r"Loader\(\d+ rows in \d+ batches, at row 0\)$"),
    (lambda: jaxdata.torch.Loader(SOME, batch_size=4), r"Loader\(\d+ rows in"),
    (lambda: load("bytes"), r"BytesTokenizer\('bytes', 257 ids, EOD 256\)$"),
    (
        lambda: jaxdata.show_batch(BATCH),
        r"batch of 4 rows of 16: \d+ segments, \d+ slots with loss, \d+ padding$",
    ),
]


@pytest.mark.parametrize(("make", "pattern"), LINES)
def test_an_object_says_what_it_is_in_a_line(make: Callable[[], Any], pattern: str) -> None:
    said = repr(make())
    assert re.match(pattern, said), said
    assert "\n" not in said
    assert " object at 0x" not in said


def test_a_dataset_is_a_table(tmp_path: Path) -> None:
    written = write_dataset(tmp_path / "<b>d", {"train/a": [[1, 0]] * 3, "val/<i>": [[1, 2, 0]]})
    shown = Shown(written._repr_html_())
    assert shown.tags <= ALLOWED
    assert not shown.attributes & {"onerror", "src"}
    assert "\u202e" not in "".join(shown.texts)
    assert shown.texts[-8:] == ["train/a", "3", "6", "none", "val/<i>", "1", "3", "none"]
    assert "<b>d" in shown.texts[0]


def test_a_batch_is_a_picture_of_its_segments() -> None:
    batch = next(jaxdata.Loader(rows(), batch_size=20))
    shown = Shown(jaxdata.show_batch(batch, lambda ids: f"{HOSTILE}{len(ids)}")._repr_html_())
    assert shown.tags <= ALLOWED
    segments = int(batch["segment_ids"][:16].max(1).sum())
    titles = [text for text in shown.texts if text.startswith("segment of")]
    assert len(titles) == segments
    slots = sum(int(re.findall(r"\d+", title)[0]) for title in titles)
    assert slots == int((batch["segment_ids"][:16] > 0).sum())
    assert "and 4 more rows" in shown.texts
    assert not any("\u202e" in text for text in shown.texts)


def test_outside_a_notebook_a_batch_is_printed_in_letters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.array([[1, 1, 1, 2, 2, 0], [0] * 6])
    loss = np.array([[0, 1, 1, 1, 1, 0], [0] * 6])
    batch = {"inputs": np.arange(12).reshape(2, 6), "segment_ids": ids, "loss_mask": loss}
    for kernel in (False, True):
        shell = SimpleNamespace(kernel="its") if kernel else SimpleNamespace()
        ipython = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        jaxdata.show_batch(batch, lambda tokens: f"{tokens[0]}\x1b and {len(tokens) - 1} more")
        lines = [
            "row 0 of 2: 2 segments, 5 of 6 slots filled, 4 with loss",
            "aAABB.",
            "a character is a slot; lower case has no loss, dots are padding",
            "A 3 slots",
            r"  “0\x1b and 2 more”",
            "B 2 slots",
            r"  “3\x1b and 1 more”",
            "row 1 of 2: 0 segments, 0 of 6 slots filled, 0 with loss",
            "......",
        ]
        assert capsys.readouterr().out.splitlines() == ([] if kernel else lines)


def test_what_is_no_batch_of_ours_is_refused() -> None:
    with pytest.raises(InputError, match=r"show_batch: given .*expected a batch or a row with the"):
        jaxdata.show_batch({"input_ids": [1]})


@given(st.text(), st.text())
def test_every_text_is_text(title: str, cell: str) -> None:
    html = table_html(title, [cell], [[cell]])
    shown = Shown(html)
    assert shown.tags <= ALLOWED
    assert all(text.isprintable() for text in shown.texts)
