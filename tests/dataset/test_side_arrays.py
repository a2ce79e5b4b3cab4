"""Side arrays: their names and types."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.dataset.manifest import as_type, check_side


@pytest.mark.parametrize(
    "name", ["", "1a", "ä", "a-b", "a" * 65, "tokens", "target_a", "chosen_a", "rejected_a"]
)
def test_a_side_array_has_a_name_of_its_own(name: str) -> None:
    own = len(name) > 64 or name in ("", "1a", "ä", "a-b")
    with pytest.raises(InputError) as refused:
        check_side(name)
    assert str(refused.value) == f"side array {name!r}" + (
        ": expected a name of up to 64 letters, digits and '_', beginning with no digit"
        if own
        else ": batches have another array of that name; give it another one"
    )
    check_side("a" * 64, "float16")
    with pytest.raises(InputError, match="side array 'a' is of bool; expected whole numbers or"):
        check_side("a", "bool")


_kinds = ["int8", "uint8", "int64", "uint64", "float16", "float32", "float64"]
_values = [0, -1, 127, 128, -128, -129, 255, 256, 2**63 - 1, -(2**63), 2**63, 65_504, 10**6]


@given(st.lists(st.sampled_from(_values), max_size=3), *[st.sampled_from(_kinds)] * 2)
def test_numbers_fit_a_type_where_it_holds_each(values: list[int], was: str, now: str) -> None:
    def holds(kind: str, value: int) -> bool:
        if kind.startswith("float"):
            return kind != "float16" or -65_520 < value < 65_520
        return int(np.iinfo(kind).min) <= value <= int(np.iinfo(kind).max)

    given_values = np.array([value for value in values if holds(was, value)], was)
    if was.startswith("float") and now in ("int64", "uint64"):
        given_values = given_values[np.abs(given_values) < 2.0**63]  # the edges are not told apart
    found = as_type(given_values, np.dtype(now))
    if not all(holds(now, int(value)) for value in given_values.tolist()):
        assert found is None
    else:
        assert found is not None
        assert (found.dtype, found.tolist()) == (now, given_values.astype(now).tolist())
    for one in (0.5, np.inf, np.nan):
        assert (as_type(np.array([one]), np.dtype(now)) is None) is (not now.startswith("float"))
