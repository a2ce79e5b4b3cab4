"""Batches of any segments of any documents, against an oracle that goes from slot to slot."""

from collections import defaultdict
from dataclasses import astuple, dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import SingleDeviceSharding

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.rows import reading
from jaxdata.rows.reading import extra_dtype
from jaxdata.rows.table import RowShape, RowTable, Segments
from jaxdata.testing import assert_same_batches
from tests.builders import documents

Draw = st.DrawFn
EXTRAS = ("source", "document", "weight", "target_weight")
NAMES = ("inputs", "targets", "loss_mask", "segment_ids", "positions", *EXTRAS)


@dataclass
class Source:
    """Documents as lists, which the oracle reads, and as the package takes them."""

    tokens: list[list[int]]
    masks: list[list[bool]] | None
    weights: list[list[float]]
    documents: jaxdata.ArrayDocuments = field(init=False)

    def __post_init__(self) -> None:
        side = {"weight": self.weights}
        self.documents = jaxdata.ArrayDocuments(self.tokens, self.masks, side=side)


@dataclass(frozen=True)
class Segment:
    source: int
    document: int
    start: int
    slots: int
    context: int


class GivenRows(RowTable):
    """Rows whose segments are given."""

    def __init__(self, sources: list[Source], rows: list[list[Segment]], *shape: Any) -> None:
        self.documents = [source.documents for source in sources]
        self.rows, self.shape = rows, RowShape(*shape)

    def __len__(self) -> int:
        return len(self.rows)

    def identity(self) -> dict[str, Any]:
        return {}

    def segments(self, rows: Ints) -> Segments:
        found = [(at, each) for at, row in enumerate(rows.tolist()) for each in self.rows[row]]
        columns = [(at, *astuple(each)) for at, each in found]
        return Segments(*np.array(columns, np.int64).reshape(-1, 6).T)


def row_of(sources: list[Source], row: list[Segment], shape: RowShape) -> Any:
    """The arrays of a row, slot by slot."""
    padding = dict.fromkeys(NAMES, 0) | {"source": -1, "document": -1}
    found: dict[str, list[Any]] = defaultdict(list)
    for number, segment in enumerate(row):
        source = sources[segment.source]
        tokens = source.tokens[segment.document]
        weights = source.weights[segment.document]
        for slot in range(segment.slots):
            at = segment.start + slot
            follows = at + 1 < len(tokens)
            trained = follows and slot >= segment.context
            if trained and source.masks is not None:
                trained = source.masks[segment.document][at + 1]
            found["inputs"].append(tokens[at])
            found["targets"].append(tokens[at + 1] if follows else 0)
            found["loss_mask"].append(trained)
            found["segment_ids"].append(number + 1)
            along = len(found["positions"])
            found["positions"].append(slot if shape.positions == "segment" else along)
            found["source"].append(segment.source)
            found["document"].append(segment.document)
            found["weight"].append(weights[at])
            found["target_weight"].append(weights[at + 1] if follows else 0)
        while len(found["inputs"]) % shape.multiple:
            for name, nothing in padding.items():
                found[name].append(nothing)
    left = shape.seq_len - len(found["inputs"])
    return {name: found[name] + [nothing] * left for name, nothing in padding.items()}


@st.composite
def _sources(draw: Draw) -> list[Source]:
    found = []
    for _ in range(draw(st.integers(1, 3))):
        vocabulary = draw(st.sampled_from([90, 2**16 - 1, 2**16, 2**31 - 1]))
        lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
        masked = draw(st.booleans())
        tokens = [_draw_list(draw, st.integers(1, vocabulary), n) for n in lengths]
        masks = [_draw_list(draw, st.booleans(), n) for n in lengths] if masked else None
        weights = [_draw_list(draw, st.integers(-9, 9).map(float), n) for n in lengths]
        found.append(Source(tokens, masks, weights))
    return found


def _draw_list(draw: Draw, of: st.SearchStrategy[Any], length: int) -> list[Any]:
    return draw(st.lists(of, min_size=length, max_size=length))


@st.composite
def _rows(draw: Draw, sources: list[Source], shape: RowShape) -> list[list[Segment]]:
    rows = []
    for _ in range(draw(st.integers(1, 7))):
        row, left = [], shape.seq_len
        while left and draw(st.integers(0, 4)):
            source = draw(st.integers(0, len(sources) - 1))
            document = draw(st.integers(0, len(sources[source].tokens) - 1))
            length = len(sources[source].tokens[document])
            start = draw(st.integers(0, length - 1))
            slots = draw(st.integers(1, min(left, length - start)))
            row.append(Segment(source, document, start, slots, draw(st.integers(0, slots))))
            left = (left - slots) // shape.multiple * shape.multiple
        rows.append(row)
    return rows


@st.composite
def _cases(draw: Draw) -> tuple[list[Source], list[list[Segment]], int, str, int]:
    sources, multiple = draw(_sources()), draw(st.sampled_from([1, 1, 2, 3, 5]))
    seq_len = multiple * draw(st.integers(1, 20 // multiple))
    shape = RowShape(seq_len, draw(st.sampled_from(["segment", "row"])), multiple)
    return sources, draw(_rows(sources, shape)), *shape


def batches_of(rows: int, batch_size: int) -> list[Ints]:
    """Every row once, from the last to the first; the last batch may be short."""
    order = np.arange(rows)[::-1]
    return [order[start : start + batch_size] for start in range(0, rows, batch_size)]


def expected(case: Any, batch: Ints, batch_size: int) -> dict[str, np.ndarray]:
    sources, rows, *shape = case
    chosen = [rows[row] for row in batch.tolist()] + [[]] * (batch_size - len(batch))
    found = [row_of(sources, row, RowShape(*shape)) for row in chosen]
    return {name: np.array([row[name] for row in found]) for name in NAMES}


@given(_cases(), st.integers(1, 4), st.lists(st.sampled_from(EXTRAS), unique=True))
def test_each_slot_holds_what_its_segment_says(case: Any, batch_size: int, extras: Any) -> None:
    table, asked = GivenRows(*case), batches_of(len(case[1]), batch_size)
    made = list(reading.assemble(table, asked, batch_size, extras))
    assert len(made) == len(asked)
    types = {"loss_mask": "bool", "weight": "float64", "target_weight": "float64"}
    for batch, numbers in zip(made, asked, strict=True):
        assert {*batch} == {*NAMES} - {*EXTRAS} | {*extras}
        values = expected(case, numbers, batch_size)
        for name, array in batch.items():
            np.testing.assert_array_equal(array, values[name], err_msg=name)
            assert array.dtype.name == types.get(name, "int32")


def test_a_pool_uses_memory_again_that_nobody_refers_to_and_keeps_so_many_free_buffers() -> None:
    made: list[bytearray] = []

    def allocate(size: int) -> bytearray:
        made.append(bytearray(size))
        return made[-1]

    pool = reading.BufferPool(allocate, most_free=2)
    taken = [pool.take(8) for _ in range(3)]
    part = taken.pop()[:1]
    taken.append(pool.take(8))
    assert len(made) == 4, "a part of the third is in use"
    del part
    taken.clear()
    taken = [pool.take(8) for _ in range(3)]
    assert len(made) == 5, "two were kept, the others let go"
    assert pool.take(16).size == 16
    taken.clear()
    assert (pool.take(8).size, len(made)) == (8, 6)


LENGTHS = [40, 3, 17, 90, 1, 66]
SOURCES = {"web": documents(LENGTHS), "code": documents(LENGTHS[::-1], first=20_000)}


def test_every_slot_of_a_mixture_names_where_its_token_stands_also_in_workers() -> None:
    rows = {}
    for name, each in SOURCES.items():
        side = {"at": [np.arange(len(tokens), dtype=np.int16) for tokens in each]}
        rows[name] = jaxdata.pack(jaxdata.ArrayDocuments(each, side=side), seq_len=32)
    mixed, asked = jaxdata.mix(rows), {"batch_size": 4, "extras": ("source", "document", "at")}
    with pytest.raises(InputError, match="these were transformed: apply the function to the batch"):
        jaxdata.Loader(mixed.map(dict), batch_size=4, extras="source")
    here, workers = (jaxdata.Loader(mixed, num_workers=n, **asked) for n in (0, 1))
    assert here.source_names == ["web", "code"]
    batches = list(here)
    for batch in batches:
        assert batch["at"].dtype == np.int16
        inside = batch["segment_ids"] > 0
        assert (batch["source"][~inside] == -1).all()
        columns = (batch[name][inside].tolist() for name in ("inputs", *asked["extras"]))
        for token, source, document, at in zip(*columns, strict=True):
            assert SOURCES[here.source_names[source]][document][at] == token
    assert assert_same_batches(workers, batches) == len(batches)
    workers.close()


def test_extras_that_cannot_be_are_refused() -> None:
    def refused(*docs: jaxdata.ArrayDocuments, extras: Any = ("weight",), **more: Any) -> str:
        rows = {each.name: jaxdata.pack(each, seq_len=4) for each in docs}
        phases = [jaxdata.Phase(rows=2, weights=dict.fromkeys(rows, 1))]
        with pytest.raises(InputError) as caught:
            jaxdata.Loader(jaxdata.mix(rows, phases=phases), batch_size=2, extras=extras, **more)
        return str(caught.value)

    tokens = [[1, 2, 3, 0]] * 9
    web = jaxdata.ArrayDocuments(tokens, name="web", side={"weight": np.ones((9, 4))})
    bare = jaxdata.ArrayDocuments(tokens, name="code")
    whole = jaxdata.ArrayDocuments(tokens, name="wiki", side={"weight": np.ones((9, 4), int)})
    assert "'code' has no side array 'weight', which other sources" in refused(web, bare)
    assert "'weight' is float64 in 'web', int64 in 'wiki'" in refused(web, whole)
    says = "expected some of ('source', 'document', 'weight', 'target_weight'), each once"
    for extras in (("language",), ("source", "source")):
        assert says in refused(web, extras=extras)
    sharding = SingleDeviceSharding(jax.devices()[0])
    assert "'weight' needs 64 bits, as it is stored, but JAX is" in refused(web, sharding=sharding)


def test_ids_of_more_documents_than_32_bits_count_take_64() -> None:
    for most, dtype in ((2**31, np.int32), (2**31 + 1, np.int64)):
        table: Any = SimpleNamespace(documents=[SimpleNamespace(base=range(most))])
        assert extra_dtype(table, "source") is np.int32
        assert extra_dtype(table, "document") is dtype


def test_lengths_of_64_bits_are_mixed_like_others() -> None:
    """As those of another tool's file are where it holds a document of 2^32 tokens."""
    rows = {}
    for name, first in (("web", 1), ("code", 1_000)):
        docs = jaxdata.ArrayDocuments(documents([9] * 20, first=first), name=name)
        docs.lengths = docs.lengths.astype(np.uint64)
        rows[name] = jaxdata.pack(docs, seq_len=8)
    mixed = jaxdata.mix(rows)
    trained = [mixed[row]["targets"][mixed[row]["loss_mask"]] for row in range(len(mixed))]
    assert np.unique(np.concatenate(trained)).size == 2 * 20 * 8
