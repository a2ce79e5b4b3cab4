"""Source and document ids of every slot: right, and the same whichever way a batch is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.errors import InputError
from jaxdata.feed.device import check_wide
from jaxdata.rows.extras import extra_dtype
from jaxdata.testing import assert_same_batches, distinct_documents, write_dataset
from tests.feed.pod import rows_asked

BOTH = ("source", "document")
RNG = np.random.default_rng(3)
TEXTS = {
    name: distinct_documents(RNG.integers(1, 90, count), first=1 + 20_000 * number)
    for number, (name, count) in enumerate({"web": 300, "code": 200, "wiki": 100}.items())
}


def mixed(strategy: str = "best_fit", **settings: Any) -> Any:
    rows = {
        name: jaxdata.pack(
            jaxdata.ArrayDocuments(documents, name=f"train/{name}"),
            seq_len=32,
            strategy=strategy,
            order=1,
            block=64,
            **settings,
        )
        for name, documents in TEXTS.items()
    }
    phases = [
        jaxdata.Phase(rows=300, weights={"web": 0.5, "code": 0.3, "wiki": 0.2}),
        jaxdata.Phase(rows=301, weights={"web": 0.3, "code": 0.4, "wiki": 0.3}),
    ]
    return jaxdata.mix(rows, phases=phases, epochs=dict.fromkeys(rows, 4))


def owners() -> tuple[np.ndarray, np.ndarray]:
    """Of each token id, the source and the document that it stands in, nowhere else."""
    source, document = np.full(60_000, -1), np.full(60_000, -1)
    for number, documents in enumerate(TEXTS.values()):
        for at, tokens in enumerate(documents):
            source[tokens], document[tokens] = number, at
    return source, document


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "crop", "pad"])
def test_every_slot_names_where_its_token_stands(strategy: str) -> None:
    loader = jaxdata.Loader(mixed(strategy), batch_size=24, extras=BOTH)
    assert loader.source_names == ["web", "code", "wiki"]
    source, document = owners()
    seen = np.zeros(3, int)
    for batch in loader:
        inside = batch["segment_ids"] > 0
        for name, owner in zip(BOTH, (source, document), strict=True):
            assert batch[name].dtype == np.int32
            expected = np.where(inside, owner[batch["inputs"]], -1)
            np.testing.assert_array_equal(batch[name], expected)
        seen += np.bincount(batch["source"][inside], minlength=3)
    assert (seen > 1000).all()
    assert not inside[-1].any(), "the last batch is completed, and its padding is of no source"


def test_without_them_nothing_is_added() -> None:
    plain, extra = (
        jaxdata.Loader(mixed(), batch_size=24),
        jaxdata.Loader(mixed(), batch_size=24, extras=("document",)),
    )
    batch = next(extra)
    assert set(batch) - set(next(plain)) == {"document"}


def test_segments_are_looked_up_once() -> None:
    rows = mixed()
    with rows_asked(rows.table) as asked:
        list(jaxdata.Loader(rows, batch_size=24, extras=BOTH))
    assert sorted(asked) == list(range(len(rows)))


REFERENCE = list(jaxdata.Loader(mixed(), batch_size=24, prefetch=0, extras=BOTH))


@pytest.mark.parametrize("num_workers", [1, 3])
def test_worker_processes_make_the_same(num_workers: int) -> None:
    loader = jaxdata.Loader(mixed(), batch_size=24, num_workers=num_workers, extras=BOTH)
    assert assert_same_batches(loader, REFERENCE) == 26
    loader.close()


@pytest.mark.parametrize("shards", [2, 3, 24])
def test_shards_joined_are_the_batch(shards: int) -> None:
    parts = [
        list(jaxdata.Loader(mixed(), batch_size=24, shard=(part, shards), extras=BOTH))
        for part in range(shards)
    ]
    joined = [
        {name: np.concatenate([part[name] for part in step]) for name in step[0]}
        for step in zip(*parts, strict=True)
    ]
    assert_same_batches(joined, REFERENCE)


MESHES: dict[str, tuple[Sequence[int], Any]] = {
    "data": ((4,), PartitionSpec("x")),
    "data x model": ((2, 2), PartitionSpec("x")),
    "batch x sequence": ((2, 2), PartitionSpec("x", "y")),
    "sequence": ((4,), PartitionSpec(None, "x")),
}


@pytest.mark.parametrize("expand", ["host", "device"])
@pytest.mark.parametrize("mesh", MESHES)
def test_on_any_mesh_and_laid_out_anywhere(mesh: str, expand: str) -> None:
    shape, spec = MESHES[mesh]
    devices = np.array(jax.devices()[:4]).reshape(shape)
    sharding = NamedSharding(Mesh(devices, ("x", "y")[: len(shape)]), spec)
    loader = jaxdata.Loader(mixed(), batch_size=24, sharding=sharding, expand=expand, extras=BOTH)
    loader.seek(step=20)
    assert assert_same_batches(loader, REFERENCE[20:]) == 6


@pytest.mark.parametrize("strategy", ["concat", "crop", "pad"])
def test_devices_lay_out_what_the_host_would(strategy: str) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))
    settings: dict[str, Any] = {"batch_size": 24, "sharding": sharding, "extras": BOTH}
    on_device = jaxdata.Loader(mixed(strategy), expand="device", **settings)
    assert_same_batches(on_device, jaxdata.Loader(mixed(strategy), **settings))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    sources = {f"{split}/{name}": TEXTS[name] for split in ("train", "val") for name in TEXTS}
    write_dataset(tmp_path / "d", sources)
    return tmp_path / "d"


def test_a_config_asks_for_them_and_evaluation_has_them(dataset: Path) -> None:
    config = {
        "dataset": str(dataset),
        "pack": {"seq_len": 32},
        "loader": {"batch_size": 8, "extras": ["source", "document"]},
    }
    source, document = owners()
    order = np.array([1, 0, 2])  # sources of a split are sorted by name
    for split in ("train", "val"):
        loader = jaxdata.load(config, split)
        for batch in loader:
            inside = batch["segment_ids"] > 0
            expected = np.where(inside, order[source[batch["inputs"]]], -1)
            np.testing.assert_array_equal(batch["source"], expected)
            expected = np.where(inside, document[batch["inputs"]], -1)
            np.testing.assert_array_equal(batch["document"], expected)
        assert [name.split("/")[-1] for name in loader.source_names] == ["code", "web", "wiki"]
    with pytest.raises(InputError, match=r"extras=\['author'\]: expected some of"):
        jaxdata.load(config, loader={"extras": ["author"]})


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match=r"extras=\('author',\): expected some of \('source', "):
        jaxdata.Loader(mixed(), batch_size=4, extras=("author",))
    with pytest.raises(InputError, match="each once"):
        jaxdata.Loader(mixed(), batch_size=4, extras=("source", "source"))
    with pytest.raises(InputError, match="these were transformed: apply the function to the batch"):
        jaxdata.Loader(mixed().map(dict), batch_size=4, extras="source")


def test_more_documents_than_32_bits_count() -> None:
    class Table:
        documents = (range(2**31 + 1),)

    assert extra_dtype(Table(), "source") is np.int32  # type: ignore[arg-type]
    assert extra_dtype(Table(), "document") is np.int64  # type: ignore[arg-type]
    Table.documents = (range(2**31),)
    assert extra_dtype(Table(), "document") is np.int32  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'document' needs 64 bits, .* set JAX_ENABLE_X64=1"):
        check_wide({"source": np.int32, "document": np.int64})
