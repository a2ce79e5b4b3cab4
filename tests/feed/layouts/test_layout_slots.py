"""Batches in every layout, against going from slot to slot."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.feed.layouts import (
    IGNORED,
    LAYOUTS,
    HuggingFace,
    Megatron,
    check_layout,
    check_named,
    layout,
    maxtext,
    native,
    stored_layout,
)


class Slot(NamedTuple):
    token: int
    target: int
    segment: int
    """0 in padding"""
    position: int
    trained: bool


NOTHING = Slot(0, 0, 0, 0, False)
Row = list[Slot]


def _row(draw: st.DrawFn, seq_len: int, along: bool) -> Row:
    row: Row = []
    number = 0
    while len(row) < seq_len and draw(st.integers(0, 5)):
        number += 1
        slots = draw(st.integers(1, seq_len - len(row)))
        context = draw(st.integers(0, slots))
        for at in range(slots):
            trained = at >= context and draw(st.integers(0, 4)) > 0
            tokens = draw(st.integers(1, 2**31 - 1)), draw(st.integers(0, 2**31 - 1))
            row.append(Slot(*tokens, number, len(row) if along else at, trained))
        row += [NOTHING] * draw(st.integers(0, min(2, seq_len - len(row))))
    return row + [NOTHING] * (seq_len - len(row))


@st.composite
def rows(draw: st.DrawFn, along: bool = False) -> list[Row]:
    seq_len = draw(st.integers(1, 7))
    return [_row(draw, seq_len, along) for _ in range(draw(st.integers(1, 3)))]


ROWS = st.booleans().flatmap(lambda along: rows(along))


def batch_of(given_: list[Row]) -> dict[str, np.ndarray]:
    names = {"inputs": 0, "targets": 1, "segment_ids": 2, "positions": 3}
    batch = {
        name: np.array([[slot[at] for slot in row] for row in given_], np.int32)
        for name, at in names.items()
    }
    return {**batch, "loss_mask": np.array([[slot.trained for slot in row] for row in given_])}


EXTRA = {"weight": np.float64([1, 2]), "source": np.int32([0])}


def same(found: Any, expected: dict[str, tuple[str, Any]]) -> None:
    """Names, types and values, whatever arrays the rows carry besides."""
    for name, array in EXTRA.items():
        assert found.pop(name) is array
    assert {*found} == {*expected}
    for name, (kind, values) in expected.items():
        assert found[name].dtype == kind, name
        assert found[name].tolist() == values, name


def seen(row: Row) -> list[list[bool]]:
    """Which slots each slot attends to: those of its segment up to itself."""
    return [
        [other <= at and row[other].segment == slot.segment for other in range(len(row))]
        for at, slot in enumerate(row)
    ]


def spans(row: Row) -> list[tuple[int, int]]:
    """Slots of each segment, and with the padding after it; a row of padding has an empty one."""
    found: list[tuple[int, int]] = []
    for at, slot in enumerate(row):
        if not at or slot.segment not in (0, row[at - 1].segment):
            found.append((0, 0))
        filled, taken = found[-1]
        found[-1] = filled + (slot.segment > 0), taken + 1
    return found


def runs(row: Row) -> list[int]:
    """Lengths of the segments of a row, padding among them."""
    found: list[int] = []
    for at, slot in enumerate(row):
        if at and slot.segment == row[at - 1].segment:
            found[-1] += 1
        else:
            found.append(1)
    return found


def all_of(given_: list[Row], column: str) -> list[list[Any]]:
    return [[getattr(slot, column) for slot in row] for row in given_]


@given(ROWS)
def test_maxtext_marks_targets_without_loss_by_segment_0(given_: list[Row]) -> None:
    batch = {**batch_of(given_), **EXTRA}
    marked = [[slot.segment if slot.trained else 0 for slot in row] for row in given_]
    expected = {
        "inputs": all_of(given_, "token"),
        "targets": all_of(given_, "target"),
        "inputs_position": all_of(given_, "position"),
        "targets_position": all_of(given_, "position"),
        "inputs_segmentation": all_of(given_, "segment"),
        "targets_segmentation": marked,
    }
    same(maxtext(batch), {name: ("int32", values) for name, values in expected.items()})


@given(ROWS, st.sampled_from([None, True, False]), st.booleans())
def test_megatron_has_masks_of_what_is_not_seen_or_starts_of_segments(
    given_: list[Row], mask: bool | None, lengths: bool
) -> None:
    expected = {
        "tokens": ("int64", all_of(given_, "token")),
        "labels": ("int64", all_of(given_, "target")),
        "position_ids": ("int64", all_of(given_, "position")),
        "loss_mask": ("float32", [[float(slot.trained) for slot in row] for row in given_]),
    }
    if mask or (mask is None and not lengths):
        hidden = [[[[not each for each in line] for line in seen(row)]] for row in given_]
        expected["attention_mask"] = ("bool", hidden)
    if lengths:
        starts, seq_len = [], len(given_[0])
        for row in given_:
            begins = [sum(runs(row)[:n]) for n in range(len(runs(row)))]
            starts.append(begins + [seq_len] * (seq_len + 1 - len(begins)))
        expected["cu_seqlens"] = ("int32", starts)
        expected["max_seqlen"] = ("int32", [max(runs(row)) for row in given_])
        for name, number in (("cu_seqlens_q", 0), ("cu_seqlens_q_padded", 1)):
            each = [[*accumulate((n[number] for n in spans(r)), initial=0)] for r in given_]
            filled = [ends + ends[-1:] * (seq_len + 1 - len(ends)) for ends in each]
            expected[name] = ("int32", filled)
        longest = [max(taken for _, taken in spans(row)) for row in given_]
        expected["max_seqlen_q"] = ("int32", longest)
    same(Megatron(mask, lengths)({**batch_of(given_), **EXTRA}), expected)


@given(rows(), st.booleans(), st.booleans())
def test_labels_of_transformers_are_targets_a_slot_later(
    given_: list[Row], mask: bool, lengths: bool
) -> None:
    targets = [[slot.target if slot.trained else -100 for slot in row] for row in given_]
    expected = {
        "input_ids": ("int64", all_of(given_, "token")),
        "position_ids": ("int64", all_of(given_, "position")),
        "shift_labels": ("int64", targets),
        "labels": ("int64", [[-100, *row[:-1]] for row in targets]),
        "use_cache": ("bool", False),
    }
    if mask:
        expected["attention_mask"] = ("bool", [[seen(row)] for row in given_])
    if lengths:
        every = [length for row in given_ for length in runs(row)]
        starts = [sum(every[:n]) for n in range(len(every) + 1)]
        for of in "qk":
            expected[f"cu_seq_lens_{of}"] = ("int32", starts)
            expected[f"max_length_{of}"] = ("int32", max(every))
    assert IGNORED == -100
    same(HuggingFace(mask, lengths)({**batch_of(given_), **EXTRA}), expected)


@given(rows(along=True))
def test_transformers_takes_positions_along_the_row_only_of_one_segment(given_: list[Row]) -> None:
    batch = batch_of(given_)
    if all(slot.segment <= 1 for row in given_ for slot in row):
        assert HuggingFace()(batch)["position_ids"].tolist() == all_of(given_, "position")
        return
    with pytest.raises(InputError) as caught:
        HuggingFace()(batch)
    assert str(caught.value) == (
        "layout='hf' marks documents for transformers by positions that restart, but the "
        "positions of these rows run along the row: pack with positions='segment'"
    )


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[Row, Row]]:
    seq_len = draw(st.integers(1, 6))

    def text() -> Row:
        tokens = draw(st.lists(st.integers(1, 99), min_size=0, max_size=seq_len + 1))
        trained = draw(st.integers(0, seq_len))
        row = [
            Slot(token, following, 1, at, at >= trained)
            for at, (token, following) in enumerate(pairwise(tokens))
        ]
        return row + [NOTHING] * (seq_len - len(row))

    return [(text(), text()) for _ in range(draw(st.integers(1, 3)))]


@given(pairs())
def test_pairs_are_all_chosen_texts_then_all_rejected_ones(given_: list[tuple[Row, Row]]) -> None:
    sides = {"chosen": [a for a, _ in given_], "rejected": [b for _, b in given_]}
    batch = {
        f"{side}_{name}": array
        for side, texts in sides.items()
        for name, array in batch_of(texts).items()
    }
    every = sides["chosen"] + sides["rejected"]
    expected = {
        "input_ids": [[row[0].token, *(slot.target for slot in row)] for row in every],
        "attention_mask": [
            [int(row[0].segment > 0), *(int(slot.segment > 0) for slot in row)] for row in every
        ],
        "completion_mask": [[0, *(int(slot.trained) for slot in row)] for row in every],
    }
    found = HuggingFace()(batch)
    assert {name: array.tolist() for name, array in found.items()} == expected
    assert {array.dtype.name for array in found.values()} == {"int64"}
    for name, refusing in (("maxtext", maxtext), ("megatron", Megatron())):
        with pytest.raises(InputError) as caught:
            refusing(batch)
        assert str(caught.value) == (
            f"layout='{name}' takes packed rows, and these are preference pairs: use layout='hf', "
            "which gives TRL's DPO batches, layout='jaxdata', or a function of your own"
        )


OURS = ["inputs", "loss_mask", "positions", "segment_ids", "targets"]


@given(st.sampled_from(["maxtext", "hf", "megatron"]), st.sets(st.sampled_from(OURS), min_size=1))
def test_arrays_that_are_lacking_are_named(name: str, lacking: set[str]) -> None:
    batch = {each: array for each, array in batch_of([[NOTHING]]).items() if each not in lacking}
    batch["chosen_inputs"] = np.zeros((1, 1))  # one side makes no pair
    with pytest.raises(InputError) as caught:
        layout(name)(batch)
    assert str(caught.value) == (
        f"layout='{name}' needs the arrays inputs, loss_mask, positions, segment_ids, targets, and "
        f"rows here lack {', '.join(sorted(lacking))}: keep them in rows.map(f), or use a function "
        "of your own"
    )


def own(batch: Any, factor: int = 1) -> Any:
    return batch * factor


class Own:
    def __init__(self, factor: int = 2) -> None:
        self.factor = factor

    def __call__(self, batch: Any) -> Any:
        return batch * self.factor


HERE = __name__


def test_a_layout_is_named_with_or_without_options() -> None:
    batch = batch_of([[NOTHING]])
    assert native(batch) is batch
    assert layout("jaxdata") is layout({"jaxdata": {}}) is layout({"jaxdata": None}) is native
    assert layout("hf") is LAYOUTS["hf"]
    assert layout({"hf": {"cu_seqlens": True}}) == HuggingFace(False, True)
    assert layout({"megatron": {"attention_mask": False}}) == Megatron(False, False)
    assert layout(own) is own
    assert layout(f"{HERE}:own") is own
    assert layout({f"{HERE}:own": {"factor": 3}})(5) == 15
    assert layout(f"{HERE}:Own")(5) == 10
    assert layout({f"{HERE}:Own": {"factor": 7}})(5) == 35
    assert [*LAYOUTS] == ["jaxdata", "maxtext", "hf", "megatron"]
    for given_ in ("hf", "no.such:thing", {"no_such:thing": {"any": 3}}):
        assert check_named(given_) == given_, "a name is checked without importing it"
    assert check_named({"hf": {}}) == "hf"
    options = {"cu_seqlens": True}
    assert check_named({"megatron": options}) == {"megatron": options}
    assert check_named({"megatron": options})["megatron"] is not options, "a config's own stays"


CHOICES = (
    "expected one of 'jaxdata', 'maxtext', 'hf', 'megatron', 'module:function' for one of your "
    "own, {name: {option: value}}, or in Python a function of a batch"
)
MENU = "options are attention_mask, cu_seqlens; expected {name: {option: value}}"
NONE = "it has no options; expected {name: {option: value}}"


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        *((wrong, CHOICES) for wrong in ("t5", 3, {}, "a:", ":b", "a.:b", "a b:c", "a.b")),
        *((wrong, CHOICES) for wrong in ({"hf": {}, "maxtext": {}}, {3: {}}, {"t5": {}})),
        ({"hf": {"mask": True}}, MENU),
        ({"megatron": ["cu_seqlens"]}, MENU),
        ({"maxtext": {"cu_seqlens": True}}, NONE),
        ({"a:b": 3}, NONE),
        ({"hf": {"cu_seqlens": 1}}, "cu_seqlens is 1, expected true or false"),
        (
            {"hf": {"cu_seqlens": True, "attention_mask": None}},
            "attention_mask is None, expected true or false",
        ),
    ],
)
def test_a_wrong_name_or_option_is_refused(given_: Any, message: str) -> None:
    for door in (check_named, layout):
        with pytest.raises(InputError) as caught:
            door(given_)
        assert str(caught.value) == f"layout={given_!r}: {message}"


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (
            "no_such_module:f",
            "'no_such_module:f': No module named 'no_such_module'. Set PYTHONPATH to the folder "
            "that no_such_module.py is in",
        ),
        (f"{HERE}:absent", f"'{HERE}:absent': {HERE} has no 'absent'"),
        (f"{HERE}:HERE", f"'{HERE}:HERE' is {HERE!r}: expected module:function"),
        ({f"{HERE}:Own": {"other": 7}}, f"{{'{HERE}:Own': {{'other': 7}}}}: "),
    ],
)
def test_a_function_that_cannot_be_imported_is_named(given_: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        layout(given_)
    assert str(caught.value).startswith(f"layout={message}")


def test_devices_expand_only_the_native_layout() -> None:
    assert check_layout("jaxdata", on_host=False) is native
    assert check_layout("maxtext", on_host=True) is maxtext
    with pytest.raises(InputError) as caught:
        check_layout("maxtext", on_host=False)
    assert str(caught.value) == (
        "layout='maxtext' is made on the host, but expand='device' makes the arrays of layout "
        "'jaxdata' on devices: remove one of them, or rename arrays in the jitted step"
    )


def test_rows_are_stored_without_masks_that_nobody_asked_for() -> None:
    assert stored_layout("megatron") == Megatron(False, False)
    assert stored_layout({"megatron": {"cu_seqlens": True}}) == Megatron(False, True)
    assert stored_layout({"megatron": {"attention_mask": True}}) == Megatron(True, False)
    assert stored_layout("hf") is LAYOUTS["hf"]
