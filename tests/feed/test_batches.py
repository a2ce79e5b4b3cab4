"""Which rows of each batch a process makes, in how large groups, and what is made of odd rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.feed.batches import BatchMaker, Change, DatasetBatches, DirectStream, Share
from jaxdata.feed.layouts import native
from jaxdata.feed.schedule import Skips, Span
from jaxdata.rows.table import Key


class Sorted(NamedTuple):
    """Rows with a key of their own, many of them alike."""

    lanes: int
    factor: int

    def batch_key(self, rows: Ints) -> Key:
        return (rows * self.factor % 5).astype(np.uint64)


@given(st.data())
def test_a_process_has_the_rows_at_its_offsets_of_each_batch(data: st.DataObject) -> None:
    skipped = data.draw(st.lists(st.integers(0, 40).map(lambda a: (2 * a, 2 * a + 1)), max_size=4))
    ends = sorted(data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=3)))
    size = data.draw(st.integers(1, 12))
    offsets = sorted(data.draw(st.sets(st.integers(0, size - 1))))
    lanes, factor = data.draw(st.sampled_from([1, 2, 8])), data.draw(st.integers(1, 4))
    keyed = [Sorted(lanes, factor)] * len(ends) * data.draw(st.booleans())
    shift = data.draw(st.sampled_from([0, 100, 2**40]))
    each = {size: np.array(offsets, np.int64), size + 1: np.arange(2)}
    share = Share(each, Skips(skipped), ends, keyed, shift)
    section = data.draw(st.integers(0, len(ends) - 1))
    begin = ends[section - 1] if section else 0
    last = max(ends[section] - 1, begin)
    firsts = data.draw(st.sets(st.integers(begin, last), max_size=3)) | {last}
    spans = [Span(first, size, section) for first in sorted(firsts)]
    kept = [row for row in range(200) if not any(a <= row < b for a, b in skipped)]
    expected = []
    for span in spans:
        batch = kept[span.first : min(span.first + size, ends[section])]
        if keyed and lanes > 1:
            batch.sort(key=lambda row: (row * factor % 5, row))
        expected.append([batch[at] + shift for at in offsets if at < len(batch)])
        assert share.size(span) == len(offsets)
    found = share.rows(spans)
    assert [rows.tolist() for rows in found] == expected
    assert {rows.dtype.name for rows in found} == {"int64"}


class Rows:
    """A dataset that was transformed, of which a row was lost."""

    def __init__(self) -> None:
        self.read = list[int]()

    def __getitem__(self, row: int) -> Any:
        self.read.append(row)
        return None if row == 3 else {"x": np.array([row, row + 1], np.int16)}


def test_rows_that_became_none_are_refused_and_a_batch_without_rows_looks_like_the_first() -> None:
    maker = DatasetBatches(Rows(), Share({4: np.array([1, 3])}, Skips(), [10]))
    batches = [batch["x"].tolist() for batch in maker.make([Span(4, 4), Span(8, 4), Span(9, 4)])]
    assert batches == [[[5, 6], [7, 8]], [[9, 10], [0, 0]], [[0, 0], [0, 0]]]
    assert maker.rows.read == [5, 7, 9, 0]
    with pytest.raises(InputError, match="row 3 is None: rows cannot be filtered after packing, "):
        next(maker.make([Span(0, 4)]))


class Maker(BatchMaker):
    """Makes texts of spans, and notes how many at a time."""

    def __init__(self, *limits: int, layout: Any = native) -> None:
        self.limits, self.layout, self.objective = limits, layout, None
        self.groups: list[int] = []

    def together(self, span: Span) -> int:
        return self.limits[min(span.first, len(self.limits) - 1)]

    def arrays(self, spans: Any, buffers: Any = None) -> Iterator[Any]:
        self.groups.append(len(spans))
        return (f"batch {span.first}" for span in spans)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(0, 40), st.integers(0, 9))
def test_groups_double_up_to_what_is_best_made_together_and_another_recipe_begins_anew(
    limits: list[int], count: int, changed: int
) -> None:
    spans = [Span(number, 1) for number in range(count)]
    maker, other = Maker(*limits), Maker(*limits, layout=str.upper)
    stream, found = DirectStream(maker, iter(spans)), list[str]()
    for _ in range(min(changed, count)):
        found.append(next(stream)[1])
    stream.change(Change(lambda _: other, iter(spans[max(changed - 1, 0) :])))
    found += [batch for _, batch in stream]
    assert found == [("batch" if n < changed else "BATCH") + f" {n}" for n in range(count)]
    expected, made, size = list[int](), min(changed, count), 1
    while made < count:
        expected.append(min(size, count - made))
        made += expected[-1]
        size = min(2 * size, other.together(spans[made - 1]))
    assert other.groups == expected
