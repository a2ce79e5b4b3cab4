"""Source and document of each slot, and side arrays: what is refused, and what workers make.

`test_assembling.py` compares every slot with an oracle.
"""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.feed.device import check_wide
from jaxdata.rows.extras import extra_dtype
from jaxdata.testing import assert_same_batches
from tests.builders import documents

LENGTHS = [40, 3, 17, 90, 1, 66]
SOURCES = {"web": documents(LENGTHS), "code": documents(LENGTHS[::-1], first=20_000)}


def mixed() -> Any:
    rows = {
        name: jaxdata.pack(
            jaxdata.ArrayDocuments(
                each, side={"at": [np.arange(len(d), dtype=np.int16) for d in each]}
            ),
            seq_len=32,
        )
        for name, each in SOURCES.items()
    }
    return jaxdata.mix(rows)


def test_every_slot_of_a_mixture_names_where_its_token_stands_also_in_workers() -> None:
    asked = {"batch_size": 4, "extras": ("source", "document", "at")}
    here, workers = (jaxdata.Loader(mixed(), num_workers=n, **asked) for n in (0, 1))
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
    for most, dtype in ((2**31, np.int32), (2**31 + 1, np.int64)):
        table: Any = SimpleNamespace(documents=[SimpleNamespace(base=range(most))])
        assert extra_dtype(table, "source") is np.int32
        assert extra_dtype(table, "document") is dtype
    with pytest.raises(InputError, match=r"'document' needs 64 bits, .* set JAX_ENABLE_X64=1"):
        check_wide({"source": np.int32, "document": np.int64})
