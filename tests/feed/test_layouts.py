"""Batches in every layout, and what attention kernels are told, against going from slot to slot."""

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn.attention.flex_attention import create_block_mask

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError
from jaxdata.feed import device, layouts
from jaxdata.feed.layouts import LAYOUTS, HuggingFace, Megatron, check_named, layout, stored_layout

VOCAB, SEQ_LEN = 64, 24
random = np.random.default_rng(0)
TEXTS = [random.integers(1, VOCAB, size) for size in random.integers(1, 60, 80)]
MASKS = [random.integers(0, 2, len(text)) for text in TEXTS]
PACKED = jaxdata.pack(jaxdata.ArrayDocuments(TEXTS, MASKS), seq_len=SEQ_LEN, overlap=5)


def batches(face: Any = jaxdata.Loader, rows: Any = PACKED, **settings: Any) -> list[Any]:
    return list(face(rows, **{"batch_size": 4, "prefetch": 0, **settings}))


NATIVE = batches()


def same_segment(ids: Any) -> Any:
    return (ids[:, :, None] == ids[:, None, :]) & np.tri(SEQ_LEN, dtype=bool)


EXTRA = {"weight": np.float64([1, 2]), "source": np.int32([0])}


def same(found: Any, expected: dict[str, tuple[str, Any]]) -> None:
    """Names, types and values, whatever arrays the rows carry besides."""
    for name, array in EXTRA.items():
        assert found.pop(name) is array
    assert {*found} == {*expected}
    for name, (kind, values) in expected.items():
        assert found[name].dtype == kind, name
        assert np.array_equal(found[name], values), name


def test_maxtext_marks_targets_without_loss_by_segment_0() -> None:
    for batch in NATIVE:
        marked = np.where(batch["loss_mask"], batch["segment_ids"], 0)
        expected = {"inputs": batch["inputs"], "targets": batch["targets"]}
        expected |= {f"{of}_position": batch["positions"] for of in ("inputs", "targets")}
        expected |= {"inputs_segmentation": batch["segment_ids"], "targets_segmentation": marked}
        found = layouts.maxtext(batch | EXTRA)
        same(found, {name: ("int32", array) for name, array in expected.items()})


@pytest.mark.parametrize("mask", [None, True, False])
@pytest.mark.parametrize("lengths", [True, False])
def test_megatron_has_masks_of_what_is_not_seen_or_starts_of_segments(
    mask: bool | None, lengths: bool
) -> None:
    for batch in NATIVE:
        ids, named = batch["segment_ids"], {"tokens": "inputs", "labels": "targets"}
        named["position_ids"] = "positions"
        expected = {name: ("int64", batch[own]) for name, own in named.items()}
        expected["loss_mask"] = ("float32", batch["loss_mask"] * 1.0)
        if mask or (mask is None and not lengths):
            expected["attention_mask"] = ("bool", ~same_segment(ids)[:, None])
        if lengths:
            numbers = layouts.row_cu_seqlens(ids) | layouts.padded_cu_seqlens(ids)
            expected |= {name: ("int32", array) for name, array in numbers.items()}
        same(Megatron(mask, lengths)(batch | EXTRA), expected)


@pytest.mark.parametrize("mask", [True, False])
def test_labels_of_transformers_are_targets_a_slot_later(mask: bool) -> None:
    for batch in NATIVE:
        targets = np.where(batch["loss_mask"], batch["targets"], -100)
        later = np.pad(targets, [(0, 0), (1, 0)], constant_values=-100)[:, :-1]
        numbers = {"input_ids": batch["inputs"], "position_ids": batch["positions"]}
        numbers |= {"shift_labels": targets, "labels": later}
        expected = {name: ("int64", array) for name, array in numbers.items()}
        expected["use_cache"] = ("bool", False)
        if mask:
            expected["attention_mask"] = ("bool", same_segment(batch["segment_ids"])[:, None])
        else:
            starts, longest = layouts.cu_seqlens(batch["segment_ids"])
            for of in "qk":
                expected[f"cu_seq_lens_{of}"] = ("int32", starts)
                expected[f"max_length_{of}"] = ("int32", longest)
        same(HuggingFace(mask, not mask)(batch | EXTRA), expected)


def test_pairs_are_all_chosen_texts_then_all_rejected_ones() -> None:
    texts = [[[7, n, n + 1, n + 2, 0][: 2 + n % 4] for n in range(at, at + 9)] for at in (10, 40)]
    answers = [[[0, *[1] * (len(text) - 1)] for text in each] for each in texts]
    sides = [jaxdata.ArrayDocuments(*both) for both in zip(texts, answers, strict=True)]
    rows = jaxdata.pairs(*sides, seq_len=4, shuffle=False)
    [found] = batches(rows=rows, batch_size=9, layout="hf")
    every = texts[0] + texts[1]
    assert found["input_ids"].tolist() == [text + [0] * (5 - len(text)) for text in every]
    filled = [[1] * len(text) + [0] * (5 - len(text)) for text in every]
    assert found["attention_mask"].tolist() == filled
    assert found["completion_mask"].tolist() == [[0, *row[1:]] for row in filled]
    assert {array.dtype.name for array in found.values()} == {"int64"}


def own(batch: Any, factor: int = 1) -> Any:
    return batch * factor


HERE = __name__


def test_a_layout_is_named_with_or_without_options() -> None:
    assert layouts.native(NATIVE[0]) is NATIVE[0]
    for given_ in ("jaxdata", {"jaxdata": {}}, {"jaxdata": None}):
        assert layout(given_) is layouts.native
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
SEVERAL = next(batch for batch in NATIVE if batch["segment_ids"].max() > 1)
ALONG = SEVERAL | {"positions": np.arange(SEQ_LEN) * (SEVERAL["segment_ids"] > 0)}
PAIR = {f"{side}_inputs": np.zeros((1, 1)) for side in ("chosen", "rejected")}


NAMES = "expected one of 'jaxdata', 'maxtext', 'hf',"
ABSENT = f"{__file__} has no function "


REFUSED: list[Any] = [
    *((check_named, wrong, NAMES) for wrong in ("t5", 3, {}, "a.:b", {3: {}})),
    (check_named, {"hf": {}, "maxtext": {}}, NAMES),
    (layout, {"hf": {"mask": True}}, MENU),
    (layout, {"megatron": ["cu_seqlens"]}, MENU),
    (layout, {"hf": {"cu_seqlens": 1}}, MENU),
    (layout, {"maxtext": {"cu_seqlens": True}}, "it has no options; expected {name:"),
    (layout, "no_such_module:f", "ModuleNotFoundError: No module named 'no_such_module'"),
    (layout, f"{HERE}:absent", f"layout='{HERE}:absent': {ABSENT}'absent'"),
    (layout, f"{HERE}:HERE", f"layout='{HERE}:HERE': {ABSENT}'HERE'"),
    (LAYOUTS["megatron"], PAIR, "lack inputs, loss_mask, positions, "),
    (LAYOUTS["maxtext"], PAIR, "for preference pairs layout='hf', which gives TRL's"),
    (LAYOUTS["hf"], ALONG, "positions of these rows run along the row: pack with"),
    (LAYOUTS["hf"], {"inputs": 0}, "rows here lack loss_mask, positions, segment_ids,"),
]


@pytest.mark.parametrize(("call", "given_", "message"), REFUSED)
def test_what_is_no_layout_or_no_batch_for_it_is_refused(
    call: Any, given_: Any, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        call(given_)
    assert message in str(caught.value)


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
    placed = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    ways = [
        (np.ndarray, batches(layout=nested, num_workers=1)),
        (jax.Array, batches(layout=nested, sharding=placed)),
        (torch.Tensor, batches(jaxdata.torch.Loader, layout=nested)),
    ]
    for kind, made in ways:
        for found, expected in zip(made, want, strict=True):
            assert jax.tree.structure(found) == jax.tree.structure(expected)
            for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                assert np.array_equal(leaf, other)
                assert isinstance(leaf, kind) or not np.ndim(other)


def test_leaves_are_named_by_their_paths_and_others_refused() -> None:
    batch = {"x": (1, [2]), "y": Example(3, 4)}
    assert layouts.map_leaves(lambda _, leaf: leaf, batch) == batch, "lists stay lists"
    assert layouts.leaves(batch) == {"x.0": 1, "x.1.0": 2, "y.0": 3, "y.1": 4}
    assert layouts.leaves(7) == {"": 7}
    with pytest.raises(InputError, match=r"the layout put a set into a batch: expected arrays and"):
        batches(jaxdata.torch.Loader, layout=lambda _: {1, 2})


@st.composite
def segment_ids(draw: Any) -> Any:
    """Rows of segments with padding behind them."""
    seq_len = draw(st.integers(1, 70))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = sorted(draw(st.lists(st.integers(0, seq_len), max_size=8)))
        ids = np.searchsorted(cuts, np.arange(seq_len), side="right") + 1
        ids = np.unique(ids, return_inverse=True)[1].reshape(-1) + 1
        ids[seq_len - draw(st.integers(0, seq_len)) :] *= draw(st.integers(0, 1))
        rows.append(ids)
    return np.stack(rows).astype(np.int32)


@pytest.mark.slow
@settings(max_examples=40)
@given(segment_ids(), st.sampled_from([2, 5, 16, 128]))
def test_block_masks_are_those_that_torch_makes_of_dense_ones(ids: Any, size: int) -> None:
    given_ids = torch.from_numpy(ids)
    dense = jaxdata.torch.attention_mask(given_ids)

    def looks(batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return dense[batch, 0, query, key]

    rows, seq_len = ids.shape
    theirs = create_block_mask(looks, rows, None, seq_len, seq_len, "cpu", BLOCK_SIZE=size)
    ours = jaxdata.torch.block_mask(given_ids, size)
    assert ours.shape == theirs.shape
    assert (ours.to_dense() == theirs.to_dense()).all()
    for name in ("kv", "q", "full_kv", "full_q"):
        count = f"{name}_num_blocks"
        assert torch.equal(getattr(ours, count), getattr(theirs, count))
    query, key = torch.arange(seq_len)[:, None], torch.arange(seq_len)
    batch = torch.arange(rows)[:, None, None]
    assert torch.equal(ours.mask_mod(batch, torch.tensor(0), query, key), dense[:, 0])


def runs(row: list[int]) -> list[tuple[int, int]]:
    """First slot and length of each run of one segment, or of padding."""
    begins = [at for at, one in enumerate(row) if not at or one != row[at - 1]]
    return [(a, b - a) for a, b in pairwise([*begins, len(row)])]


@settings(max_examples=50)
@given(segment_ids())
def test_lengths_and_masks_say_where_segments_begin(ids: Any) -> None:
    """Each row by itself, all as one stream, and with padding counted to the segment before it."""
    rows, slots = ids.tolist(), ids.shape[1]
    each, padded = layouts.row_cu_seqlens(ids), layouts.padded_cu_seqlens(ids)
    seen, stream = [], [0]
    for number, row in enumerate(rows):
        found = runs(row)
        ends = [begin + length for begin, length in found]
        stream += [number * slots + end for end in ends]
        seen.append([[[row[k] == row[q] and k <= q for k in range(slots)] for q in range(slots)]])
        filled = [0, *ends] + [slots] * (slots - len(ends))
        assert each["cu_seqlens"][number].tolist() == filled
        assert each["max_seqlen"][number] == max(length for _, length in found)
        segments = [run for run in found if row[run[0]]] or [(0, 0)]
        starts = [0, *(begin for begin, _ in segments[1:]), slots]
        lengths = [*accumulate((length for _, length in segments), initial=0)]
        rest = slots - len(segments)
        assert padded["cu_seqlens_q_padded"][number].tolist() == starts + [slots] * rest
        assert padded["cu_seqlens_q"][number].tolist() == lengths + lengths[-1:] * rest
        assert padded["max_seqlen_q"][number] == max(b - a for a, b in pairwise(starts))
    assert layouts.attention_mask(ids)[:, None].tolist() == seen
    assert jaxdata.torch.attention_mask(torch.from_numpy(ids)).tolist() == seen
    numbers, longest = jaxdata.torch.cu_seqlens(torch.from_numpy(ids))
    assert (numbers.tolist(), longest) == (stream, each["max_seqlen"].max())
    filled, same = layouts.cu_seqlens(ids, len(numbers) + 2)
    assert (filled.tolist(), same) == ([*stream, ids.size, ids.size], longest)
    assert {array.dtype.name for array in (filled, *each.values(), *padded.values())} == {"int32"}
    with pytest.raises(InputError, match=rf"do not fit into length={len(numbers) - 1}: increase i"):
        layouts.cu_seqlens(ids, len(numbers) - 1)


def test_masks_on_devices_are_those_of_numpy() -> None:
    ids = np.array([[1, 1, 2, 2, 2, 0], [1, 2, 3, 0, 0, 0], [0] * 6])
    expected = layouts.attention_mask(ids)[:, None]
    assert np.array_equal(device.attention_mask(jnp.asarray(ids)), expected)
    assert device.splash_segment_ids(ids) == (ids, ids)  # type: ignore[arg-type]
