"""Batches in every layout, against going from slot to slot; in trainers' own code."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError
from jaxdata.feed.layouts import (
    IGNORED,
    LAYOUTS,
    HuggingFace,
    Megatron,
    check_layout,
    check_named,
    layout,
    leaves,
    map_leaves,
    maxtext,
    native,
    stored_layout,
)
from jaxdata.testing import assert_same_batches


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
    with pytest.raises(InputError, match=r"positions of these rows run along the row: pack with"):
        HuggingFace()(batch)


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


def own(batch: Any, factor: int = 1) -> Any:
    return batch * factor


HERE = __name__


def test_a_layout_is_named_with_or_without_options() -> None:
    batch = batch_of([[NOTHING]])
    assert native(batch) is batch
    assert layout("jaxdata") is layout({"jaxdata": {}}) is layout({"jaxdata": None}) is native
    assert layout("hf") is LAYOUTS["hf"]
    assert layout({"hf": {"cu_seqlens": True}}) == HuggingFace(False, True)
    assert layout({"megatron": {"attention_mask": False}}) == Megatron(False, False)
    assert layout(own) is layout(f"{HERE}:own") is own
    assert layout({f"{HERE}:own": {"factor": 3}})(5) == 15
    for given_ in ("hf", "no.such:thing", {"no_such:thing": {"any": 3}}):
        assert check_named(given_) == given_, "a name is checked without importing it"
    assert stored_layout("megatron") == Megatron(False, False), "no mask that nobody asked for"
    assert stored_layout({"megatron": {"attention_mask": True}}) == Megatron(True, False)
    assert stored_layout("hf") is LAYOUTS["hf"]


MENU = "options, true or false, are attention_mask, cu_seqlens; expected {name: {option"
PAIR = {f"{side}_inputs": np.zeros((1, 1)) for side in ("chosen", "rejected")}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda wrong=wrong: check_named(wrong), "expected one of 'jaxdata', 'maxtext', 'hf',")
            for wrong in ("t5", 3, {}, "a:", "a.:b", "a b:c", {"hf": {}, "maxtext": {}}, {3: {}})
        ),
        (lambda: layout({"hf": {"mask": True}}), MENU),
        (lambda: layout({"megatron": ["cu_seqlens"]}), MENU),
        (lambda: layout({"hf": {"cu_seqlens": 1}}), MENU),
        (lambda: layout({"maxtext": {"cu_seqlens": True}}), "it has no options; expected {name:"),
        (lambda: layout("no_such_module:f"), "No module named 'no_such_module'. Set PYTHONPATH to"),
        (lambda: layout(f"{HERE}:absent"), f"'{HERE}:absent': {HERE} has no 'absent'"),
        (lambda: layout(f"{HERE}:HERE"), f"'{HERE}:HERE' is {HERE!r}: expected module:function"),
        (lambda: check_layout("maxtext", on_host=False), "makes the arrays of layout 'jaxdata' on"),
        (lambda: layout("megatron")(PAIR), "takes packed rows, and these are preference pairs: u"),
        (lambda: layout("hf")({"inputs": 0}), "rows here lack loss_mask, positions, segment_ids,"),
    ],
)
def test_what_is_no_layout_or_no_batch_for_it_is_refused(call: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)


VOCAB, SEQ_LEN = 64, 24
random = np.random.default_rng(0)
TEXTS = [random.integers(1, VOCAB, size) for size in random.integers(1, 60, 80)]
MASKS = [random.integers(0, 2, len(text)) for text in TEXTS]
PACKED = jaxdata.pack(jaxdata.ArrayDocuments(TEXTS, MASKS), seq_len=SEQ_LEN, overlap=5)


def batches(face: Any = jaxdata.Loader, **settings: Any) -> list[Any]:
    return list(face(PACKED, **{"batch_size": 4, "prefetch": 0, **settings}))


NATIVE = batches()


class TinyModel(torch.nn.Module):
    """One block of attention; `mask` says who may look at whom."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(VOCAB, 16)
        self.positions = torch.nn.Embedding(SEQ_LEN, 16)
        self.mix = torch.nn.Linear(16, 48)
        self.head = torch.nn.Linear(16, VOCAB)

    def forward(self, tokens: Any, positions: Any, mask: Any) -> torch.Tensor:
        x = self.embedding(torch.tensor(tokens)) + self.positions(torch.tensor(positions))
        query, key, value = self.mix(x).chunk(3, dim=-1)
        seen = functional.scaled_dot_product_attention(query, key, value, torch.tensor(mask))
        return self.head(x + seen)


MODEL = TinyModel()


def nats(logits: torch.Tensor, targets: Any) -> torch.Tensor:
    """Of each target, those that are -100 at nought."""
    flat = torch.tensor(targets).long().flatten()
    return functional.cross_entropy(
        logits.flatten(0, 1), flat, reduction="none", ignore_index=-100
    ).reshape(logits.shape[:-1])


def same_segment(ids: Any) -> Any:
    return (ids[:, :, None] == ids[:, None, :]) & np.tri(SEQ_LEN, dtype=bool)


@pytest.mark.slow
def test_transformers_takes_it_as_it_is() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=SEQ_LEN,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for batch, plain in list(zip(batches(layout="hf"), NATIVE, strict=True))[:2]:
        given_ = {name: torch.tensor(array) for name, array in batch.items()}
        alone = documents_alone(model, plain)
        assert model(**given_).loss.item() == pytest.approx(alone, rel=1e-4)
        mask = HuggingFace(attention_mask=True)(plain)["attention_mask"]
        by_mask = model(**given_, attention_mask=torch.tensor(mask)).loss
        assert by_mask.item() == pytest.approx(alone, rel=1e-4)


def documents_alone(model: Any, batch: Any) -> float:
    """The loss with each segment of each row as a text of its own."""
    costs: list[float] = []
    for row in range(len(batch["inputs"])):
        for number in range(1, batch["segment_ids"][row].max() + 1):
            here = batch["segment_ids"][row] == number
            tokens = torch.tensor(batch["inputs"][row][here])[None].long()
            each = nats(model(tokens).logits, batch["targets"][row][here][None])[0]
            costs += each[torch.tensor(batch["loss_mask"][row][here])].tolist()
    return float(np.mean(costs))


class Example(NamedTuple):
    x: Any
    y: Any


def nested(batch: Any) -> Any:
    flags = {"causal": True, "name": "packed", "none": None, "scale": 0.5}
    longest = int(batch["segment_ids"].max())
    inside = [Example(batch["inputs"], (batch["targets"],)), flags]
    return inside, {"mask": batch["loss_mask"], "longest": np.array(7), "count": longest}


@pytest.mark.slow
def test_every_way_of_delivery_keeps_the_structure() -> None:
    want = [nested(batch) for batch in NATIVE]
    shapes = [shape_of(batch) for batch in want]
    assert len(set(shapes)) > 1, "it changes on the way"
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    ways = [
        (np.ndarray, batches(layout=nested, num_workers=1)),
        (jax.Array, batches(layout=nested, sharding=device)),
        (torch.Tensor, batches(jaxdata.torch.Loader, layout=nested)),
    ]
    for kind, made in ways:
        assert [shape_of(batch) for batch in made] == shapes
        assert all(isinstance(leaf, kind) for leaf in arrays_in(made[0]))
        assert_same_batches(map(arrays_in, made), map(arrays_in, want))


def test_leaves_are_named_by_their_paths_and_others_refused() -> None:
    assert leaves({"x": (1, [2]), "y": Example(3, 4)}) == {"x.0": 1, "x.1.0": 2, "y.0": 3, "y.1": 4}
    assert leaves(7) == {"": 7}
    with pytest.raises(InputError, match=r"the layout put a set into a batch: expected arrays and"):
        batches(jaxdata.torch.Loader, layout=lambda _: {1, 2})


def shape_of(batch: Any) -> str:
    """The types of a structure, and the constants in it."""

    def shown(_: str, leaf: Any) -> Any:
        single = isinstance(leaf, np.ndarray | np.generic) and not leaf.ndim
        return leaf.item() if single else "array" if np.ndim(leaf) else leaf

    return repr(map_leaves(shown, batch))


def arrays_in(batch: Any) -> list[Any]:
    return [leaf for leaf in leaves(batch).values() if np.ndim(leaf)]
