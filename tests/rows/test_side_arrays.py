"""Side arrays lie in batches beside the tokens that they were stored beside, however cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.errors import InputError
from jaxdata.feed.layouts import LAYOUTS
from jaxdata.testing import assert_same_batches, distinct_documents

ALL = ("document", "weight", "target_weight", "at", "target_at", "language")


def documents(
    lengths: Sequence[int], name: str = "train/web", first: int = 1
) -> jaxdata.ArrayDocuments:
    """Every token differs: `weight` follows from it; `at` is its place, `language` its document."""
    tokens = distinct_documents(lengths, first)
    return jaxdata.ArrayDocuments(
        tokens,
        name=name,
        side={
            "weight": [weight(each) for each in tokens],
            "at": [np.arange(len(each), dtype=np.int16) for each in tokens],
            "language": [
                np.full(len(each), k % 251 + 1, np.uint8) for k, each in enumerate(tokens)
            ],
        },
    )


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
    same = batch["segment_ids"][:, 1:] == batch["segment_ids"][:, :-1]
    np.testing.assert_array_equal(
        begin[:, 1:][same & inside[:, 1:]], begin[:, :-1][same & inside[:, 1:]]
    )
    types = {"weight": np.float32, "at": np.int16, "target_at": np.int16, "language": np.uint8}
    assert {name: batch[name].dtype for name in types} == types


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    seq_len=st.integers(1, 24),
    part=st.integers(0, 12),
    strategy=st.sampled_from(["best_fit", "concat", "crop", "pad"]),
    order=st.sampled_from([1, 2]),
    size=st.integers(1, 7),
)
def test_a_value_lies_beside_its_token(
    lengths: list[int], seq_len: int, part: int, strategy: str, order: int, size: int
) -> None:
    overlap = min(part, seq_len // 2) if strategy in ("best_fit", "pad") else 0
    lengths = [*lengths, 2]  # without a target there is no row
    packing: dict[str, Any] = {"strategy": strategy, "overlap": overlap, "order": order}
    rows = jaxdata.pack(documents(lengths), seq_len=seq_len, **packing)
    plain = jaxdata.Loader(rows, batch_size=size, prefetch=0)
    for batch, without in zip(
        jaxdata.Loader(rows, batch_size=size, prefetch=0, extras=ALL), plain, strict=True
    ):
        check(batch)
        assert_same_batches([{name: batch[name] for name in without}], [without])


def mixed() -> Any:
    chance = np.random.default_rng(2)
    rows = {
        name: jaxdata.pack(
            documents(chance.integers(1, 90, count), f"train/{name}", first), seq_len=32, overlap=5
        )
        for name, count, first in (("web", 200, 1), ("code", 150, 20_000))
    }
    phases = [jaxdata.Phase(rows=150, weights={"web": 0.6, "code": 0.4})]
    return jaxdata.mix(rows, phases=phases, epochs=dict.fromkeys(rows, 3))


REFERENCE = list(jaxdata.Loader(mixed(), batch_size=12, prefetch=0, extras=ALL))


def test_of_a_mixture() -> None:
    for batch in REFERENCE:
        check(batch)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_worker_processes_make_the_same(num_workers: int) -> None:
    loader = jaxdata.Loader(mixed(), batch_size=12, num_workers=num_workers, extras=ALL)
    assert assert_same_batches(loader, REFERENCE) == len(REFERENCE)
    loader.close()


def test_shards_joined_are_the_batch_and_a_state_goes_on() -> None:
    begun = jaxdata.Loader(mixed(), batch_size=12, extras=ALL)
    list(islice(begun, 4))
    parts = []
    for part in range(3):
        loader = jaxdata.Loader(mixed(), batch_size=12, shard=(part, 3), extras=ALL)
        loader.set_state(begun.get_state())
        parts.append(list(loader))
    joined = [
        {name: np.concatenate([part[name] for part in step]) for name in step[0]}
        for step in zip(*parts, strict=True)
    ]
    assert assert_same_batches(joined, REFERENCE[4:]) == len(REFERENCE) - 4


@pytest.mark.parametrize("expand", ["host", "device"])
@pytest.mark.parametrize("spec", [PartitionSpec("x"), PartitionSpec(None, "x")])
def test_on_devices(spec: Any, expand: str) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("x",)), spec)
    loader = jaxdata.Loader(mixed(), batch_size=12, sharding=sharding, expand=expand, extras=ALL)
    loader.seek(step=8)
    assert assert_same_batches(loader, REFERENCE[8:]) == len(REFERENCE) - 8


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_passes_them_on(layout: str) -> None:
    batch = next(jaxdata.Loader(mixed(), batch_size=12, layout=layout, extras=ALL))
    for name in ALL:
        np.testing.assert_array_equal(batch[name], REFERENCE[0][name])


def test_the_remainder_of_a_source_that_is_packed_again() -> None:
    docs = documents(np.random.default_rng(3).integers(1, 90, 300))
    rows = jaxdata.mix(
        {"web": jaxdata.pack(docs, seq_len=32)}, phases=[jaxdata.Phase(rows=90, weights={"web": 1})]
    )
    longer = {"web": jaxdata.pack(docs, seq_len=64)}
    amended = rows.amend(40, rows=longer, phases=[jaxdata.Phase(weights={"web": 1})])
    seen = [len(batch["inputs"][0]) for batch in map_check(amended)]
    assert set(seen) == {32, 64}


def map_check(rows: Any) -> Any:
    for batch in jaxdata.Loader(rows, batch_size=8, extras=ALL):
        check(batch)
        yield batch


def test_what_cannot_be_is_refused() -> None:
    def loader(*docs: jaxdata.ArrayDocuments, extras: Any = ("weight",), **more: Any) -> Any:
        rows = {each.name: jaxdata.pack(each, seq_len=4) for each in docs}
        phases = [jaxdata.Phase(rows=2, weights=dict.fromkeys(rows, 1))]
        return jaxdata.Loader(jaxdata.mix(rows, phases=phases), batch_size=2, extras=extras, **more)

    tokens = [[1, 2, 3, 0]] * 9
    web = jaxdata.ArrayDocuments(tokens, name="web", side={"weight": np.ones((9, 4))})
    bare = jaxdata.ArrayDocuments(tokens, name="code")
    whole = jaxdata.ArrayDocuments(tokens, name="wiki", side={"weight": np.ones((9, 4), int)})
    with pytest.raises(InputError, match=r"'code' has no side array 'weight', which other sources"):
        loader(web, bare)
    with pytest.raises(InputError, match=r"'weight' is float64 in 'web', int64 in 'wiki'"):
        loader(web, whole)
    says = r"expected some of \('source', 'document', 'weight', 'target_weight'\), each once"
    with pytest.raises(InputError, match=says):
        loader(web, extras=("language",))
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))
    with pytest.raises(InputError, match=r"'weight' needs 64 bits, as it is stored, but JAX is"):
        loader(web, sharding=sharding)
