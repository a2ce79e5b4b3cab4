"""Numbers of numpy, jax and torch at every door: the same rows, files and states as Python's own.

The doors are found by reflection: an argument that is a number has to be in `tests/doors.py`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from yaml import safe_load as load_yaml

import jaxdata
import jaxdata.rows.megatron
import jaxdata.torch
from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.base.numbers import kinds_of, plain, validated
from jaxdata.config import Config, load_config
from jaxdata.converter.parameters import options
from jaxdata.dataset.contract import Dataset
from jaxdata.rows.map_datasets import MixedDataset, PackedDataset
from jaxdata.rows.pairs import PairDataset
from jaxdata.streaming.iterator import TextStream
from tests.converter.here import convert_here
from tests.doors import WEB, Door, delivered, doors, files, mixed, web, write_data

KINDS: dict[str, dict[type, Callable[[Any], Any]]] = {
    "numpy": {int: np.int64, float: np.float64, bool: np.bool_},
    "jax, torch": {int: jnp.int32, float: torch.tensor, bool: np.array},
}
SMALL = {int: np.int32, float: np.float32, bool: np.array}
NUMBER = re.compile(r"\b(int|float|bool|Weights)\b")
MEMBERS = [
    *(("Loader", jaxdata.Loader), ("torch.Loader", jaxdata.torch.Loader)),
    *(("torch.Batches", jaxdata.torch.Batches), ("TextStream", TextStream)),
    *(("PackedDataset", PackedDataset), ("MixedDataset", MixedDataset)),
    *(("PairDataset", PairDataset), ("Dataset", Dataset)),
]
NAMES = sorted(doors(Path(), Path()))
OF_ARRAYS = {"torch.block_mask", "torch.cu_seqlens"}
"""functions of arrays: no number of theirs decides a row, or is kept"""


def of_kind(value: Any, kind: str | dict[type, Any]) -> Any:
    """The same value in numbers of another kind, in containers too."""
    makes = KINDS[kind] if isinstance(kind, str) else kind
    if isinstance(value, dict):
        return {name: of_kind(inner, makes) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(of_kind(inner, makes) for inner in value)
    return makes[type(value)](value) if type(value) in makes else value


@pytest.fixture(scope="module")
def all_doors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Door]:
    data = tmp_path_factory.mktemp("data")
    write_data(data)
    return doors(data, tmp_path_factory.mktemp("written"))


def public() -> Iterator[tuple[str, Any]]:
    """Every public callable, by name."""
    modules = {"": jaxdata, "megatron.": jaxdata.rows.megatron, "torch.": jaxdata.torch}
    for above, module in {**modules, "tokenizers.": tokenizers}.items():
        yield from ((above + name, getattr(module, name)) for name in module.__all__)
    for name, members in MEMBERS:
        for method, function in inspect.getmembers(members, inspect.isfunction):
            if function.__module__.startswith("jaxdata") and not method.startswith("_"):
                yield f"{name}.{method}", function


def numbers_of(function: Any) -> set[str]:
    """Names of its arguments that are numbers or flags, or are made of them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # an exception, or a class of grain's
        return set()
    said = ((each.name, str(each.annotation)) for each in parameters)
    return {name for name, hint in said if NUMBER.search(hint) and "Callable" not in hint}


def test_every_door_with_a_number_is_known(all_doors: dict[str, Door]) -> None:
    found = {name: numbers for name, each in public() if (numbers := numbers_of(each))}
    shared = {name.replace("torch.Loader.", "Loader."): numbers for name, numbers in found.items()}
    named = {name: {n for case in door.cases for n in case} for name, door in all_doors.items()}
    assert shared.keys() - OF_ARRAYS == named.keys()
    for name, numbers in named.items():
        assert numbers >= shared[name], name


@pytest.mark.parametrize("name", NAMES)
def test_a_door_takes_numbers_of_any_kind(all_doors: dict[str, Door], name: str) -> None:
    door = all_doors[name]
    for case in door.cases:
        expected = door.call(**case)
        for kind in KINDS:
            assert door.call(**of_kind(case, kind)) == expected, kind


@pytest.mark.parametrize("name", NAMES)
def test_a_door_refuses_numbers_that_no_array_can_hold(
    all_doors: dict[str, Door], name: str
) -> None:
    door, huge = all_doors[name], 10**5000
    for argument, value in door.cases[0].items():
        if type(value) is int:
            with pytest.raises(InputError, match="bits: expected at most 64"):
                door.call(**{**door.cases[0], argument: huge})


SIDE = jaxdata.ArrayDocuments([[1, 2, 3, 0]], masks=[[0, 0, 1, 1]])
WEB_ROWS = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 9, name="web"), seq_len=4)


def packed(**given: Any) -> Any:
    return jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 9), **{"seq_len": 4, **given})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: packed(seq_len=2**31), "seq_len=2147483648: expected at most 1,073,741,824"),
        (lambda: packed(lanes=2**40), r"lanes=1099511627776: expected at most 65,536"),
        (lambda: packed(chunk_bytes=2**63), "chunk_bytes=9223372036854775808: expected at"),
        (lambda: packed(block_bytes=2**63), "block_bytes=9223372036854775808: expected at most"),
        (lambda: jaxdata.Loader(WEB_ROWS, batch_size=10**12), "at most 16,777,216 rows"),
        (lambda: jaxdata.Loader(WEB_ROWS, batch_size=[(0, 4), (8, 2**40)]), "at most 16,777,216"),
        (lambda: jaxdata.Loader(packed(seq_len=2**12), batch_size=2**20), "make batch_size or seq"),
        (lambda: jaxdata.Loader(WEB_ROWS, batch_size=4, prefetch=2**31), "at most 65,536"),
        (lambda: jaxdata.Loader(WEB_ROWS, batch_size=4, num_workers=2**31), "at most 1,024"),
        (lambda: jaxdata.pairs(SIDE, SIDE, seq_len=2**31), "expected 1 to 1,073,741,824"),
        (lambda: jaxdata.rows.megatron.gpt(WEB, seq_len=2**31), "expected at most 1,073,741,824"),
        (lambda: jaxdata.mix({"web": WEB_ROWS}, epochs={"web": 2e18}), r"more than 2\^63 rows"),
        (lambda: WEB_ROWS.repeat(2**62), r"fewer than 2\^63 rows"),
        (lambda: jaxdata.Phase(rows=1, weights="size**1e308"), "a power of at most 16"),
    ],
)
def test_numbers_that_no_run_can_have_are_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()


def test_a_stream_refuses_them_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    for huge in ({"seq_len": 2**31}, {"batch_size": 2**40}, {"prefetch": 2**40}):
        with pytest.raises(InputError, match="expected at most"):
            jaxdata.stream_text(
                tmp_path / "a.txt", tokenizer="bytes", **{"seq_len": 8, "batch_size": 2, **huge}
            )


def test_a_row_that_no_array_can_have_is_out_of_range() -> None:
    for rows in (WEB_ROWS, jaxdata.mix({"web": WEB_ROWS})):
        with pytest.raises(IndexError, match="row index out of range"):
            rows[2**63]


def test_other_numbers_give_other_rows(all_doors: dict[str, Door]) -> None:
    """What is compared above tells one number from another."""
    for name in ("pack", "pairs", "megatron.gpt", "stream_text"):
        door, (case, *_) = all_doors[name], all_doors[name].cases
        assert door.call(**case) != door.call(**{**case, "seed": np.int64(case["seed"] + 1)})


EXAMPLE = load_yaml("""
dataset: d
seed: 3
generations: {web: 2}
pack: {seq_len: 64, overlap: 8, max_segments: 4, block_bytes: 900, lanes: 2}
curriculum:
  - {tokens: 5000000, mix: {web: 0.6, code: 3}}
  - {steps: 7, batch_size: 8, mix: {web: 1.0}}
  - {rows: 9, mix: size**0.5}
epochs: {web: 2, code: 0.5}
amendments: [{at_row: 4, epochs: {web: 3}}, {at_step: 5, pack: {seq_len: 32}}]
loader: {batch_size: [[0, 4], [8, 2]], num_workers: 1, prefetch: 0, drop_remainder: true,
  skip_rows: [[3, 4]]}
allow_budget_mismatch: true
eval_tokens: 4096
train: {steps: 12, model: {layers: 2, width: 64, heads: 2}}
""")


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_takes_them_in_every_field(kind: str) -> None:
    whole = load_config(EXAMPLE)
    assert load_config(of_kind(EXAMPLE, kind)) == whole
    assert load_config({"dataset": "x"}, of_kind(EXAMPLE, kind)) == whole
    names = {"pack.seq_len": 128, "loader.drop_remainder": False, "curriculum.0.mix": {"web": 0.5}}
    changed = load_config(EXAMPLE, names)
    assert load_config(EXAMPLE, of_kind(names, kind)) == changed != whole
    assert json.loads(changed.pack.model_dump_json())["seq_len"] == 128
    named = set(whole.model_dump(exclude_unset=True))
    numeric = {name for name, each in Config.model_fields.items() if NUMBER.search(str(each))}
    assert numeric <= named | {"train"}


OPTIONS = load_yaml("""
{bos: false, ftfy: false, wikitext: true, split_contiguous: false,
min_chars: 23, max_chars: 400, min_tokens: 2, max_tokens: 350, record_tokens: 20,
unit_bytes: 900, max_record_bytes: 5000, piece_bytes: 4000}
""")


def test_every_option_of_a_conversion_takes_them(tmp_path: Path) -> None:
    write_data(tmp_path)
    named = {name for name, each in options().items() if NUMBER.search(str(each.field.annotation))}
    other_tasks = {name for name in named - OPTIONS.keys() if "lm" not in options()[name].fields}
    assert named - other_tasks == OPTIONS.keys()
    reports = []
    for number, given_options in enumerate([OPTIONS, *(of_kind(OPTIONS, kind) for kind in KINDS)]):
        output = tmp_path / f"{number}"
        named = {"output": output, "source": "s", "tokenizer": "bytes", "workers": 1}
        report = convert_here(tmp_path / "texts.jsonl", **named, **given_options)
        reports.append((report.documents, files(output)))
    assert all(report == reports[0] for report in reports)
    assert 0 < reports[0][0] < 60, "some documents are too short"


@pytest.mark.parametrize("name", sorted(options()))
def test_every_option_of_a_conversion_refuses_what_is_no_number(name: str, tmp_path: Path) -> None:
    """Nothing is taken for a number that is none, and no option ends in a raw error."""
    write_data(tmp_path)
    task, field = next(iter(options()[name].fields.items()))
    kinds = kinds_of(field.annotation)
    wrong: list[Any] = [object()]
    if {int, float}.intersection(kinds):
        wrong += [True, np.True_, 9.5, float("nan"), [9]]
        wrong += [] if float in kinds else [9.0, np.float32(9)]
        wrong += [] if str in kinds else ["9"]
    wrong += [fact.ge - 1 for fact in field.metadata if hasattr(fact, "ge")]
    named = {"output": tmp_path / "out", "source": "s", "tokenizer": "bytes", "workers": 1}
    named |= {"task": task} if task else {}
    for each in wrong:
        with pytest.raises(InputError, match=re.escape(name)):
            jaxdata.convert(tmp_path / "texts.jsonl", **named, **{name: each})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_chars": True}, "min_chars=True: expected a whole number or None"),
        ({"record_tokens": 9.0}, "record_tokens=9.0: expected a whole number"),
        ({"max_tokens": -1}, "max_tokens=-1: expected at least 1"),
        ({"unit_bytes": 0}, "unit_bytes=0: expected at least 1"),
        (
            {"task": "fim", "fim_prefix": True},
            "task 'fim': fim_prefix=True: expected a whole number or a text or None",
        ),
        ({"transform": 3}, 'transform=3: expected a function, or "module:function"'),
    ],
)
def test_a_wrong_option_of_a_conversion_says_what_is_expected(
    wrong: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_data(tmp_path)
    named = {"output": tmp_path / "out", "source": "s", "tokenizer": "bytes"}
    with pytest.raises(InputError) as refused:
        jaxdata.convert(tmp_path / "more.jsonl", **named, **wrong)
    assert str(refused.value) == message


def test_a_state_that_a_checkpointer_made_of_numpy() -> None:
    loader = jaxdata.Loader(mixed(), batch_size=4, skip_rows=[(9, 11)], prefetch=0)
    next(loader)
    state = loader.get_state()
    expected = delivered(loader)
    for kind in KINDS:
        other = jaxdata.Loader(mixed(), batch_size=4, prefetch=0)
        other.set_state(of_kind(state, kind))
        assert delivered(other) == expected
        other = jaxdata.torch.Loader(mixed(), batch_size=4, prefetch=0)
        other.load_state_dict(of_kind(state, kind))
        assert json.dumps(other.get_state()) == json.dumps(state)


@given(
    st.recursive(
        st.one_of(
            st.integers(-(2**31), 2**31 - 1),
            st.floats(width=32, allow_nan=False).map(lambda x: float(str(np.float32(x)))),
            st.booleans(),
            st.text(max_size=3),
            st.none(),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.dictionaries(st.text(max_size=2), inner, max_size=3),
        ),
        max_leaves=8,
    ),
    st.sampled_from([KINDS["numpy"], SMALL]),
)
def test_any_value_comes_back_as_python_has_it(value: Any, kind: Any) -> None:
    found = plain(of_kind(value, kind))
    assert repr(found) == repr(value)
    assert repr(plain(value)) == repr(value)


def test_what_is_no_number_stays_the_object_it_is() -> None:
    rows, array = web(), np.zeros(3)
    for each in (rows, array, jnp.zeros(2), WEB, "text", None, plain):
        assert plain(each) is each
    assert plain([array])[0] is array
    records = [{"text": np.str_("a")}, {"text": "b"}]

    @validated
    def opened(files: Any, **named: Any) -> Any:
        return files, named

    for given_files, named in (opened(records, n=np.int8(3)), opened(n=np.int8(3), files=records)):
        assert given_files is records
        assert repr(named) == "{'n': 3}"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seq_len": 8.0}, "seq_len=8.0: expected a whole number"),
        ({"seq_len": np.float32(8)}, "seq_len=8.0: expected a whole number"),
        ({"seq_len": "8"}, "seq_len='8': expected a whole number"),
        ({"overlap": 1.5}, "overlap=1.5: expected a whole number"),
        ({"lanes": np.array([8])}, "lanes=array([8]): expected a whole number or None"),
        ({"max_segments": 2.5}, "max_segments=2.5: expected a whole number or None"),
        ({"seq_len": np.int64(0)}, "seq_len=0: expected at least 1"),
    ],
)
def test_numbers_of_the_wrong_kind_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        web(**wrong)
    assert str(refused.value) == message


FRACTIONS = {"weights", "epochs", "tokens", "eval_tokens", "datasets"}
FRACTIONS |= {"character_coverage", "threshold", "mid_level_dataset_surplus"}
"""arguments that may be fractions"""


def parts_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Each number in the arguments of a case, and where it is."""
    if isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from parts_of(inner, (*at, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield at, value


def with_part(value: Any, at: tuple[Any, ...], part: Any) -> Any:
    """The same arguments, with another number at one place."""
    if not at:
        return part
    key, *rest = at
    if isinstance(value, dict):
        return {**value, key: with_part(value[key], tuple(rest), part)}
    items = [*value]
    items[key] = with_part(items[key], tuple(rest), part)
    return type(value)(items)


@pytest.mark.parametrize("name", NAMES)
def test_a_door_refuses_what_is_no_number(all_doors: dict[str, Door], name: str) -> None:
    """Flags and texts everywhere; where whole numbers are expected, floats, also whole ones."""
    door = all_doors[name]
    for case in door.cases:
        for at, number in parts_of(case):
            wrong: list[Any] = [] if at[0] == "add_extra_token_to_sequence" else [True, np.True_]
            if not (at[0] in FRACTIONS or name == "Phase"):  # 3e6 rows are a budget
                wrong += [9.5, np.float32(9.5), float(number)]
            for each in [*wrong, "9"]:
                with pytest.raises(InputError, match=r"expected|must be"):
                    door.call(**with_part(case, at, each))


def test_whole_budgets_may_be_written_as_floats() -> None:
    assert len(mixed(phases=[jaxdata.Phase(rows=3e1, weights={"web": 1})])) == 30
    steps = jaxdata.Phase(steps=3.0, batch_size=np.float32(4), weights="proportional")
    assert json.dumps(steps.budget(8)) == "12"
    with pytest.raises(InputError, match=r"a phase of rows=2\.5: expected a whole number of at"):
        jaxdata.Phase(rows=np.float64(2.5), weights={"web": 1})
    with pytest.raises(InputError, match=r"epochs of 'web': True; expected a number of at least 0"):
        mixed(weights={"web": 1}, epochs={"web": np.True_})
    with pytest.raises(InputError, match=r"row=2\.5: expected a whole number"):
        mixed().amend(np.float32(2.5), epochs={"web": 2})
