"""What a shell and a notebook show of our objects: a line, or a small escaped table."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
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
from jaxdata.base.wording import COLORS, color_of, table_html, visible
from jaxdata.foreign.materialize import materialize
from jaxdata.testing import write_dataset
from jaxdata.tokenizers import load

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x00&"
DATA = Path(__file__).parents[2] / "data" / "format-2"


class Shown(HTMLParser):
    """The tags and the texts of some HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.depth = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.depth += tag != "rect"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag != "rect"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


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


def loader() -> jaxdata.Loader:
    return jaxdata.Loader(rows(), batch_size=4)


def phase() -> jaxdata.Phase:
    return jaxdata.Phase(rows=3, weights={"w": 1})


def of_words() -> Any:
    return jaxdata.open_dataset(DATA).source("train", "words")


def documents() -> Any:
    return jaxdata.ArrayDocuments([[1, 2, 0], [3, 0]])


LINES: list[tuple[Callable[[], Any], str]] = [
    (lambda: jaxdata.open_dataset(DATA), r"ConvertedDataset\('.*', \{'train'"),
    (of_words, r"ConvertedDocuments\('train/words', 120 documents, "),
    (documents, r"ArrayDocuments\('documents', 2 documents, 5 tokens\)$"),
    (rows, r"PackedDataset\(\d+ rows of 16, best_fit of 'train/web'\)$"),
    (lambda: rows().plan, r"PackSummary\(documents=60, rows=\d+, "),
    (lambda: rows().repeat(2), r"RowDataset\(\d+ rows of 16, "),
    (mixed, r"MixedDataset\(\d+ rows of 16, .*, b in 2 phases\)$"),
    (lambda: rows().table, r"PackedRows\(\d+ rows of 16, best_fit"),
    (lambda: mixed().intervals[0], r"\w*Interval\(start=0, rows=20, phase=0, "),
    (phase, r"Phase\(rows=3, weights=\{'w': 1\}\)$"),
    (loader, r"Loader\(\d+ rows in \d+ batches, at row 0\)$"),
    (lambda: jaxdata.torch.Loader(rows(), batch_size=4), r"Loader\(\d+ rows in"),
    (lambda: jaxdata.torch.Batches(rows(), batch_size=4), r"Batches\(\d+ of "),
    (lambda: load("bytes"), r"BytesTokenizer\('bytes', 257 ids, EOD 256\)$"),
    (
        lambda: jaxdata.show_batch(next(loader())),
        r"batch of 4 rows of 16: \d+ segments, \d+ slots with loss, \d+ padding$",
    ),
]


@pytest.mark.parametrize(("make", "pattern"), LINES)
def test_an_object_says_what_it_is_in_a_line(make: Callable[[], Any], pattern: str) -> None:
    said = repr(make())
    assert re.match(pattern, said), said
    assert "\n" not in said
    assert " object at 0x" not in said


def test_rows_that_were_written_say_where_they_are(tmp_path: Path) -> None:
    materialize(rows(), tmp_path / "rows", workers=1)
    assert repr(jaxdata.open_rows(tmp_path / "rows")).startswith("MaterializedRows(")


def test_a_dataset_is_a_table(tmp_path: Path) -> None:
    made = write_dataset(tmp_path / "<b>d", {"train/a": [[1, 0]] * 3, "val/<i>": [[1, 2, 0]]})
    shown = Shown(made._repr_html_())
    assert shown.tags <= ALLOWED
    assert shown.depth == 0
    assert shown.texts[-8:] == ["train/a", "3", "6", "none", "val/<i>", "1", "3", "none"]
    assert "<b>d" in shown.texts[0]


def test_a_mixture_is_its_intervals() -> None:
    made = mixed()
    shown = Shown(made._repr_html_())
    assert shown.tags <= ALLOWED
    assert not shown.attributes & {"onerror", "src"}
    stop = made.intervals[1].start + made.intervals[1].rows - 1
    texts = shown.texts
    assert texts[texts.index("0 to 19") :][:4] == ["0 to 19", "0", "0.750", "0.250"]
    assert texts[texts.index(f"20 to {stop}") :][1:4] == ["1", "0.000", "1.000"]
    assert visible(HOSTILE).startswith("&lt;img")
    assert "\u202e" not in "".join(texts)
    assert any(r"\u202e\x00&" in text for text in texts)


def test_packing_is_its_counts() -> None:
    plan = rows().plan
    shown = Shown(plan._repr_html_())
    assert f"{plan.trained_tokens:,}" in shown.texts
    assert f"{plan.padding:,}" in shown.texts
    assert Shown(rows()._repr_html_()).texts[1:] == shown.texts[1:]


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


def test_bands_have_the_colours_of_their_sources_and_padding_is_hatched() -> None:
    some = [np.arange(1, length) for length in range(3, 20)]
    both = {
        name: jaxdata.pack(jaxdata.ArrayDocuments(some, name=name), seq_len=16, strategy="pad")
        for name in "ab"
    }
    whole = jaxdata.mix(both, weights={"a": 1, "b": 1}, on_exhaustion="renormalize")
    batch = next(jaxdata.Loader(whole, batch_size=8, extras=["source"]))
    html = jaxdata.show_batch(batch)._repr_html_()
    first = batch["segment_ids"] > 0
    first[:, 1:] &= batch["segment_ids"][:, 1:] != batch["segment_ids"][:, :-1]
    numbers = batch["source"][first].tolist()
    fills = re.findall(r'fill="(#\w+)" fill-opacity', html)
    assert fills == [color_of(number) for number in numbers]
    assert len({*fills}) == 2
    padded = int((batch["segment_ids"][:, -1] == 0).sum())
    assert html.count("fill='url(#jaxdata-padding)'") == padded > 0
    del batch["source"]
    fills = re.findall(r'fill="(#\w+)" fill-opacity', jaxdata.show_batch(batch)._repr_html_())
    assert not {*fills} & {*COLORS}, "a colour is a source"


def drawn(capsys: pytest.CaptureFixture[str], **changes: Any) -> list[str]:
    ids = np.array([[1, 1, 1, 2, 2, 0]] * 6)
    inputs, loss = np.arange(36).reshape(6, 6), np.array([[0, 1, 1, 1, 1, 0]] * 6)
    batch = {"inputs": inputs, "segment_ids": ids, "loss_mask": loss} | changes
    jaxdata.show_batch(batch, lambda tokens: f"{tokens[0]}\x1b and {len(tokens) - 1} more")
    return capsys.readouterr().out.splitlines()


def test_outside_a_notebook_a_batch_is_printed_in_letters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=SimpleNamespace))
    rows = [
        [
            f"row {number} of 6: 2 segments, 5 of 6 slots filled, 4 with loss",
            "aAABB.",
            "A 3 slots",
            rf"  “{6 * number}\x1b and 2 more”",
            "B 2 slots",
            rf"  “{6 * number + 3}\x1b and 1 more”",
        ]
        for number in range(4)
    ]
    rows[0][2:2] = ["a character is a slot; lower case has no loss, dots are padding"]
    assert drawn(capsys) == [*itertools.chain(*rows), "and 2 more rows"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert any("\x1b[30;46mA\x1b[0m" in line for line in drawn(capsys))


def test_in_a_notebook_nothing_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = SimpleNamespace(kernel="its")
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert drawn(capsys) == []


def test_a_completed_row_is_printed_as_padding(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = np.zeros((1, 6), np.int64)
    first, bar, *_ = drawn(capsys, segment_ids=nothing, loss_mask=nothing)
    assert first == "row 0 of 1: 0 segments, 0 of 6 slots filled, 0 with loss"
    assert bar == "......"


def test_half_a_character_at_the_end_of_a_text_is_left_out() -> None:
    row = {"inputs": [97, 0xC3], "segment_ids": [1, 1], "loss_mask": [1, 1]}
    shown = jaxdata.show_batch(row, lambda ids: bytes(ids.tolist()).decode(errors="replace"))
    assert "<title>segment of 2 slots: a</title>" in shown._repr_html_()


@pytest.mark.parametrize("given", [7, {"input_ids": [1]}])
def test_what_is_no_batch_of_ours_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"show_batch: given .*expected a batch or a row with the"):
        jaxdata.show_batch(given)


@given(st.text(), st.text())
def test_every_text_is_text(title: str, cell: str) -> None:
    html = table_html(title, [cell], [[cell]])
    shown = Shown(html)
    assert shown.tags <= ALLOWED
    assert shown.depth == 0
    assert all(text.isprintable() for text in shown.texts)
