"""Source and document of each slot, and side arrays: right, whichever way a batch is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.device import check_wide
from jaxdata.rows.extras import extra_dtype
from jaxdata.testing import assert_same_batches, distinct_documents

IDS = ("source", "document")
ALL = (*IDS, "weight", "target_weight", "at", "target_at", "language")


def documents(
    lengths: Sequence[int], name: str = "train/web", first: int = 1
) -> jaxdata.ArrayDocuments:
    """Every token differs: `weight` follows from it; `at` is its place, `language` its document."""
    tokens = distinct_documents(lengths, first)
    side = {
        "weight": [weight(each) for each in tokens],
        "at": [np.arange(len(each), dtype=np.int16) for each in tokens],
        "language": [np.full(len(each), k % 251 + 1, np.uint8) for k, each in enumerate(tokens)],
    }
    return jaxdata.ArrayDocuments(tokens, name=name, side=side)


def weight(tokens: np.ndarray) -> np.ndarray:
    return (tokens * 1.5 - 0.25).astype(np.float32)


def check(batch: dict[str, np.ndarray]) -> None:
    inside, has_target = batch["segment_ids"] > 0, batch["targets"] > 0
    inputs, targets = batch["inputs"], batch["targets"]
    np.testing.assert_array_equal(batch["weight"], np.where(inside, weight(inputs), 0))
    np.testing.assert_array_equal(batch["target_weight"], np.where(has_target, weight(targets), 0))
    language = np.where(inside, batch["document"] % 251 + 1, 0)
    np.testing.assert_array_equal(batch["language"], language)
    # A target is the token after its input, and a segment a run of one document.
    np.testing.assert_array_equal(batch["target_at"][has_target], batch["at"][has_target] + 1)
    begin = batch["at"] - batch["positions"]
    same = (batch["segment_ids"][:, 1:] == batch["segment_ids"][:, :-1]) & inside[:, 1:]
    np.testing.assert_array_equal(begin[:, 1:][same], begin[:, :-1][same])
    types = {"weight": np.float32, "at": np.int16, "target_at": np.int16, "language": np.uint8}
    assert {name: batch[name].dtype for name in types} == types


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    seq_len=st.integers(1, 24),
    part=st.integers(0, 12),
    strategy=st.sampled_from(["best_fit", "concat", "crop", "pad"]),
    size=st.integers(1, 7),
)
def test_a_value_lies_beside_its_token(
    lengths: list[int], seq_len: int, part: int, strategy: str, size: int
) -> None:
    overlap = min(part, seq_len // 2) if strategy in ("best_fit", "pad") else 0
    docs = documents([*lengths, 2])  # without a target there is no row
    rows = jaxdata.pack(docs, seq_len=seq_len, strategy=strategy, overlap=overlap)
    plain = jaxdata.Loader(rows, batch_size=size, prefetch=0)
    extra = jaxdata.Loader(rows, batch_size=size, prefetch=0, extras=ALL)
    for batch, without in zip(extra, plain, strict=True):
        check(batch)
        assert_same_batches([{name: batch[name] for name in without}], [without])


SOURCES = {
    name: documents(np.random.default_rng(count).integers(1, 90, count), f"train/{name}", first)
    for name, count, first in (("web", 200, 1), ("code", 150, 20_000))
}


def mixed() -> Any:
    rows = {name: jaxdata.pack(docs, seq_len=32, overlap=5) for name, docs in SOURCES.items()}
    phases = [jaxdata.Phase(rows=150, weights={"web": 0.6, "code": 0.4})]
    return jaxdata.mix(rows, phases=phases, epochs=dict.fromkeys(rows, 3))


def loader(**more: Any) -> jaxdata.Loader:
    return jaxdata.Loader(mixed(), batch_size=24, **{"extras": ALL, **more})


def owners() -> np.ndarray:
    """(2, tokens): the source and the document that each token id stands in, nowhere else."""
    found = np.full((2, 60_000), -1)
    for number, docs in enumerate(SOURCES.values()):
        for at in range(len(docs)):
            found[:, docs[at]["tokens"]] = [[number], [at]]
    return found


REFERENCE = list(loader(prefetch=0))


def test_every_slot_of_a_mixture_names_where_its_token_stands() -> None:
    assert loader().source_names == ["web", "code"]
    for batch in REFERENCE:
        check(batch)
        inside = batch["segment_ids"] > 0
        for name, owner in zip(IDS, owners(), strict=True):
            assert batch[name].dtype == np.int32
            np.testing.assert_array_equal(batch[name], np.where(inside, owner[batch["inputs"]], -1))
    assert not inside[-1].any(), "the last batch is completed, and its padding is of no source"


def test_worker_processes_make_the_same() -> None:
    with_workers = loader(num_workers=2)
    assert assert_same_batches(with_workers, REFERENCE) == len(REFERENCE)
    with_workers.close()


def test_what_cannot_be_is_refused() -> None:
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
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))
    assert "'weight' needs 64 bits, as it is stored, but JAX is" in refused(web, sharding=sharding)
    with pytest.raises(InputError, match="these were transformed: apply the function to the batch"):
        jaxdata.Loader(mixed().map(dict), batch_size=4, extras="source")


def test_ids_of_more_documents_than_32_bits_count_take_64() -> None:
    class Many(NamedTuple):
        count: int

        @property
        def base(self) -> Any:
            return range(self.count)

    class Table:
        documents = (Many(2**31 + 1),)

    assert extra_dtype(Table(), "source") is np.int32  # type: ignore[arg-type]
    assert extra_dtype(Table(), "document") is np.int64  # type: ignore[arg-type]
    Table.documents = (Many(2**31),)
    assert extra_dtype(Table(), "document") is np.int32  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'document' needs 64 bits, .* set JAX_ENABLE_X64=1"):
        check_wide({"source": np.int32, "document": np.int64})
