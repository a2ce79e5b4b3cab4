"""Tables one after another: evaluation, the same rows in every epoch, and repeated sources."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings as examples, strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.packing.packed_rows import ConcatenatedRows, PackedRows
from jaxdata.rows.table import Segments, TokenCounts
from jaxdata.testing import assert_exactly_once
from tests.builders import dataset

SEQ_LEN = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = np.random.default_rng(4).integers(1, 50, 60)
    folder = tmp_path_factory.mktemp("evaluation")
    return dataset(folder / "d", {"val/b": lengths[:25], "val/a": lengths[25:]})


def evaluated(path: Path, eval_tokens: float | None, **more: Any) -> Any:
    opened = jaxdata.open_dataset(path)
    return jaxdata.evaluation_rows(opened, "val", seq_len=SEQ_LEN, eval_tokens=eval_tokens, **more)


def firsts(rows: Any) -> list[int]:
    """The first token of each row, which no other row has."""
    return [int(row["inputs"][0]) for row in rows]


def test_they_are_every_source_once_in_the_order_of_names_and_documents(path: Path) -> None:
    rows, opened = evaluated(path, None), jaxdata.open_dataset(path)
    assert_exactly_once(rows, [opened.source("val", name) for name in "ab"])
    tokens = np.array(firsts(rows))
    second = tokens < opened.source("val", "a")[0]["tokens"][0]  # ids of b are the lower ones
    assert second.tolist() == sorted(second.tolist())
    assert (np.diff(tokens[~second]) > 0).all()
    assert (np.diff(tokens[second]) > 0).all()
    assert len(evaluated(path, 4 * SEQ_LEN + 1)) == 5
    n, own = len(rows), firsts(rows)
    for epoch in (-2, 1, 7):
        beyond = [epoch * n + k for k in range(n)]
        assert firsts(rows[index] for index in beyond) == own
        assert firsts(rows._getitems(beyond)) == own, "as grain's own transformations read"
    assert firsts(rows.repeat(2)) == own * 2
    cropped = evaluated(path, None, strategy="crop").table.identity()
    assert cropped == rows.table.identity(), "no token is left out of the measure"
    assert evaluated(path, None, strategy="pad").table.identity() != cropped
    for wrong in (0, float("nan"), float("inf"), True):
        with pytest.raises(InputError, match=r"eval_tokens=.*: expected a number"):
            evaluated(path, wrong)


def test_training_rows_go_on_in_later_epochs_and_a_mixture_ends_with_its_phases(path: Path) -> None:
    rows = jaxdata.pack(jaxdata.open_dataset(path).source("val", "a"), seq_len=SEQ_LEN)
    n, own = len(rows), firsts(rows)
    assert firsts(rows[k] for k in range(-3 * n, -2 * n)) == own, "the first epoch, as grain's do"
    second = firsts(rows[k] for k in range(n, 2 * n))
    assert sorted(second) == sorted(own) != second != own
    assert firsts(rows.repeat(2)) == own + second
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        rows[1.5]
    mixed = jaxdata.mix({"a": rows}, phases=[jaxdata.Phase(rows=4, weights={"a": 1})])
    assert firsts([mixed[-4], mixed[3]]) == [own[0], own[3]]
    for beyond in (4, -5, slice(4, None)):
        with pytest.raises(IndexError, match="a mixture of 4 rows"):
            mixed[beyond]
    with pytest.raises(InputError, match=r"cannot be repeated.* epochs=\{name: times\}"):
        mixed.repeat(2)
    with pytest.raises(InputError, match=r"num_epochs=1\.5: expected a whole number or None"):
        rows.repeat(1.5)


def table_of(lengths: list[int], name: str, **settings: Any) -> PackedRows:
    documents = jaxdata.ArrayDocuments([[1] * n for n in lengths], name=name)
    return jaxdata.pack(documents, **{"seq_len": 6, **settings}).table


def listed(found: Segments) -> list[tuple[int, ...]]:
    return [*zip(*(each.tolist() for each in found.columns), strict=True)]


lengths_lists = st.lists(st.integers(1, 14), max_size=6)


@examples(max_examples=25)
@given(st.lists(lengths_lists, min_size=1, max_size=4), st.none() | st.integers(0, 30), st.data())
def test_rows_of_tables_in_sequence_are_those_of_a_list(
    lengths: list[list[int]], limit: int | None, data: st.DataObject
) -> None:
    tables = [table_of(each, f"s{n}") for n, each in enumerate(lengths)]
    made = ConcatenatedRows(tables, limit)
    every = [(n, row) for n, table in enumerate(tables) for row in range(len(table))][:limit]
    assert len(made) == len(every)
    counts = {f"s{n}": TokenCounts() for n in range(len(tables))}
    for stop, (source, row) in enumerate(every):
        assert made.token_counts(stop) == counts
        counts[f"s{source}"] += tables[source].total(row + 1) - tables[source].total(row)
    assert made.token_counts(len(every)) == counts
    if every:
        rows = data.draw(st.lists(st.integers(0, 3 * len(every)), min_size=1))
        expected = []
        for at, number in enumerate([*range(len(every)), *rows]):
            source, own = every[number % len(every)]
            found = listed(tables[source].segments(np.array([own])))
            expected += [(at, source, *more) for _, _, *more in found]
        assert listed(made.segments(np.array([*range(len(every)), *rows]))) == expected
    found = made.segments(np.arange(len(every)))
    for number, table in enumerate(tables):
        for document in range(len(table.documents[0])):
            mine = (found.source == number) & (found.document == document)
            holding = sorted({*found.row[mine].tolist()})
            assert made.rows_with(f"s{number}", document) == holding
            half = made.rows_with(f"s{number}", document, len(every) // 2)
            assert half == [row for row in holding if row < len(every) // 2]
    assert [*made.sources.items()] == [(t.documents[0].name, t) for t in tables]
    assert (made.names, made.section_at(0)) == ([*counts], made)
    assert made.total(len(every)) == sum(counts.values(), TokenCounts())
    read = [Fraction(counts[name].rows, max(len(t), 1)) for name, t in made.sources.items()]
    assert [*made.epochs(len(every)).values()] == read
    facts = {f"s{n}": table.identity()["data"][f"s{n}"] for n, table in enumerate(tables)}
    assert made.identity() == tables[0].identity() | {"data": facts, "rows": len(every)}
