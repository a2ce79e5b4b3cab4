"""Numbers of numpy, jax and torch in every public callable: Python's own, or refused in words."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import jaxdata
import jaxdata.rows.megatron
import jaxdata.torch
from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.base.numbers import plain, validated
from jaxdata.dataset.opening import Dataset
from jaxdata.rows.map_datasets import MixedDataset, PackedDataset
from jaxdata.rows.pairs import PairDataset
from jaxdata.streaming.api import TextStream
from tests.builders import documents

KINDS: list[dict[type, Callable[[Any], Any]]] = [
    {int: np.int64, float: np.float64, bool: np.bool_},
    {int: np.int32, float: np.float32, bool: np.array},
]
NUMBER = re.compile(r"\b(int|float|bool|Weights)\b")
MEMBERS = {
    **{"Loader": jaxdata.Loader, "torch.Loader": jaxdata.torch.Loader, "TextStream": TextStream},
    **{"torch.Batches": jaxdata.torch.Batches, "PackedDataset": PackedDataset},
    **{"MixedDataset": MixedDataset, "PairDataset": PairDataset, "Dataset": Dataset},
}
OTHERWISE = {"Phase", "load", "tokenizers.Tokenizer", "torch.load"}
"""what checks its numbers itself, or hands them on"""
OF_ARRAYS = {"torch.block_mask", "torch.cu_seqlens"}
"""functions of arrays: no number of theirs decides a row, or is kept"""


def of_kind(value: Any, makes: dict[type, Any]) -> Any:
    """The same value in numbers of another kind, in containers too."""
    if isinstance(value, dict):
        return {name: of_kind(inner, makes) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(of_kind(inner, makes) for inner in value)
    return makes[type(value)](value) if type(value) in makes else value


def public() -> Iterator[tuple[str, Any]]:
    """Every public callable, by name."""
    modules = {"": jaxdata, "megatron.": jaxdata.rows.megatron, "torch.": jaxdata.torch}
    for above, module in {**modules, "tokenizers.": tokenizers}.items():
        yield from ((above + name, getattr(module, name)) for name in module.__all__)
    for name, members in MEMBERS.items():
        for method, function in inspect.getmembers(members, inspect.isfunction):
            if function.__module__.startswith("jaxdata") and not method.startswith("_"):
                yield f"{name}.{method}", function


def takes_numbers(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # an exception, or a class of grain's
        return False
    hints = [str(each.annotation) for each in parameters]
    return any(NUMBER.search(hint) and "Callable" not in hint for hint in hints)


def is_validated(function: Any) -> bool:
    code, each = validated(lambda: None).__code__, function
    while each is not None and getattr(each, "__code__", None) is not code:
        each = each.__init__ if inspect.isclass(each) else getattr(each, "__wrapped__", None)
    return each is not None


def test_every_public_callable_that_takes_numbers_is_validated() -> None:
    taking = {name: each for name, each in public() if takes_numbers(each)}
    assert len(taking) > 30
    found = {name for name, each in taking.items() if not is_validated(each)}
    assert found == OTHERWISE | OF_ARRAYS


FLOATS = st.floats(width=32, allow_nan=False).map(lambda x: float(str(np.float32(x))))
LEAVES = st.integers(-(2**31), 2**31 - 1) | FLOATS | st.booleans() | st.text(max_size=3) | st.none()


def containers(inner: Any) -> Any:
    named = st.dictionaries(st.text(max_size=2), inner, max_size=3)
    return st.lists(inner, max_size=3) | st.tuples(inner, inner) | named


@given(st.recursive(LEAVES, containers, max_leaves=8), st.sampled_from(KINDS))
def test_any_value_reaches_a_function_as_python_has_it(value: Any, makes: Any) -> None:
    @validated
    def door(first: int | list[Any], **named: Any) -> Any:
        return first, named

    assert repr(plain(value)) == repr(value)
    found = door([of_kind(value, makes)], n=of_kind(value, makes))
    assert repr(found) == repr(([value], {"n": value}))


def test_what_is_no_number_stays_the_object_it_is() -> None:
    array = np.zeros(3)
    for each in (array, jnp.zeros(2), ROWS, "text", None, plain):
        assert plain(each) is each
    assert plain([array])[0] is array
    records = [{"text": np.str_("a")}, {"text": "b"}]

    @validated
    def opened(files: Any, **named: Any) -> Any:
        return files, named

    for found, named in (opened(records, n=np.int8(3)), opened(n=np.int8(3), files=records)):
        assert found is records
        assert repr(named) == "{'n': 3}"


WEB = jaxdata.ArrayDocuments(documents(120, longest=40), name="web")
ROWS = jaxdata.pack(WEB, seq_len=16)
SIDE = jaxdata.ArrayDocuments([[1, 2, 3, 0]], masks=[[0, 0, 1, 1]])


def packed(**given: Any) -> Any:
    return jaxdata.pack(WEB, **{"seq_len": 16, **given})


def loaded(**given: Any) -> Any:
    return jaxdata.Loader(ROWS, **{"batch_size": 4, **given})


REFUSED: list[Any] = [
    (lambda: packed(seq_len=8.0), "^seq_len=8.0: expected a whole number$"),
    (lambda: packed(seq_len="8"), "^seq_len='8': expected a whole number$"),
    (lambda: packed(seq_len=np.True_), "^seq_len=True: expected a whole number$"),
    (lambda: packed(lanes=np.array([8])), r"^lanes=array\(\[8\]\): .* whole number or None$"),
    (lambda: packed(seq_len=10**5000), "^seq_len: a whole .* bits: expected at most 64$"),
    (lambda: loaded(batch_size=10**12), "at most 16,777,216 rows"),
    (lambda: loaded(batch_size=[(0, 4), (8, 2**40)]), "at most 16,777,216"),
    (lambda: jaxdata.pairs(SIDE, SIDE, seq_len=2**31), "expected 1 to 1,073,741,824"),
    (lambda: jaxdata.mix({"web": ROWS}, epochs={"web": 2e18}), r"more than 2\^63 rows"),
    (lambda: jaxdata.mix({"web": ROWS}, epochs={"web": np.True_}), "epochs of 'web': True; ex"),
    (lambda: jaxdata.mix({"web": ROWS}).amend(np.float32(2.5)), "row=2.5: expected a whole"),
    (lambda: ROWS.repeat(2**62), r"fewer than 2\^63 rows"),
    (lambda: jaxdata.Phase(rows=1, weights="size**1e308"), "a power of at most 16"),
    (lambda: jaxdata.Phase(rows=np.float64(2.5), weights={}), r"rows=2\.5: expected a whole"),
]


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_what_no_run_can_have_is_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()


def test_what_is_none_of_a_few_names_is_refused() -> None:
    given: Any = {"on_exhaustion": "stop"}
    with pytest.raises(InputError) as refused:
        jaxdata.mix({}, phases=[], **given)
    assert str(refused.value) == "on_exhaustion='stop': expected 'refuse', 'halt' or 'renormalize'"
