"""`mix` as users call it: phases, weights and what ends a mixture; also far out."""

from __future__ import annotations

from typing import Any

import pytest

import jaxdata
from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.rows.mixing.phases import Phase
from jaxdata.testing import distinct_documents


def packed(name: str, rows: int, first: int = 1, seq_len: int = 8) -> jaxdata.rows.PackedDataset:
    """A source of exactly `rows` rows, each of one document."""
    documents = distinct_documents([seq_len + 1] * rows, first)
    return jaxdata.pack(jaxdata.ArrayDocuments(documents, name=name), seq_len=seq_len)


def test_a_halt_delivers_the_last_batch_and_then_says_so() -> None:
    mixed = jaxdata.mix(
        {"a": packed("a", 10)},
        phases=[Phase(rows=20, weights={"a": 1})],
        on_exhaustion="halt",
    )
    loader = jaxdata.Loader(mixed, batch_size=4)
    batches = [next(loader) for _ in range(3)]
    assert batches[2]["loss_mask"].any(axis=1).tolist() == [True, True, False, False]
    with pytest.raises(SourceExhausted, match="source 'a' runs dry in phase 0 at row 10"):
        next(loader)


def test_phases_weights_or_nothing_are_asked() -> None:
    rows = {"web": packed("web", 90), "code": packed("code", 10, 10_000)}

    def counts(**recipe: Any) -> dict[str, int]:
        return jaxdata.mix(rows, **recipe).counts()

    root = [Phase(rows=40, weights="size**0.5")]
    assert counts(phases=root, epochs={"code": 2}) == {"web": 30, "code": 10}
    assert counts(phases=[Phase(rows=20, weights="proportional")]) == {"web": 18, "code": 2}
    until_dry = jaxdata.mix(rows, weights={"web": 1, "code": 1})
    assert until_dry.counts() == {"web": 10, "code": 10}
    assert until_dry.table.end() is None, "it was asked for no more"
    assert counts(weights={"web": 1, "code": 1}, epochs={"code": 1.5})["web"] == 15
    to_the_end = counts(weights="proportional", on_exhaustion="renormalize")
    assert to_the_end == counts() == {"web": 90, "code": 10}
    assert counts(epochs={"web": 2}) == {"web": 180, "code": 10}
    last = [Phase(rows=4, weights={"web": 1}), Phase(weights={"code": 1})]
    assert counts(phases=last) == {"web": 4, "code": 10}
    with pytest.raises(InputError, match=r"mix takes phases=\[…\] or weights=\{…\}, not both"):
        counts(phases=last, weights="proportional")
    for given_rows in ({"a": rows["web"].map(dict)}, {"a": rows["web"].repeat(2)}):
        with pytest.raises(InputError, match=r"transform rows after mixing: mix\(\.\.\.\)\.map"):
            jaxdata.mix(given_rows, phases=last)
    with pytest.raises(InputError, match=r"mix: given a list, expected names and packed sources"):
        jaxdata.mix([rows["web"]], phases=last)  # type: ignore[arg-type]
