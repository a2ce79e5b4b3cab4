"""Batches as trainers want them: names, dtypes, masks for attention, slots in context parallelism.

A layout is a function of a batch of numpy arrays, applied in the process that makes the batch,
before any copy to a device. Every layout here gives the same loss, to the last target. To add one,
add it to `LAYOUTS`: configs, commands and error messages take their choices from there.

Masks and sequence lengths come from segment ids. Padding counts as a segment of its own: it attends
only to padding, and nothing else attends to it. No slot attends to nothing, which would give NaN.

For context parallelism a row is cut into 2n chunks, so that every device gets as much of causal
attention: part *i* of *n* holds chunks *i* and *2n - 1 - i*, one from the head of the row and one
from its tail. Transformer Engine, Megatron-Core and MaxText call it load balanced.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.source_text import function_named, is_place
from jaxdata.rows.table import Batch, RowTable

SIDES = ("chosen", "rejected")
IGNORED = -100
"""the label that torch's cross entropy ignores"""
_CONTAINERS = (dict, list, tuple, Mapping)
_PLAIN = (str, bytes, bool, int, float, type(None))
_OURS = {"inputs", "targets", "segment_ids", "positions", "loss_mask"}


class Layout(Protocol):
    """A function from jaxdata's batch to a trainer's; users may pass their own.

    The batch has `inputs`, `targets`, `segment_ids`, `positions` (int32) and `loss_mask` (bool),
    each (…, seq_len); one of `jaxdata.pairs` has them twice, as `chosen_inputs`,
    `rejected_inputs` and so on. The layouts here pass on any other arrays of the rows. The result
    may share arrays with the batch. It may be a dict, a tuple, an array, or these nested: any
    structure of arrays and plain constants.
    """

    def __call__(self, batch: Batch, /) -> Any: ...


def native(batch: Batch) -> Batch:
    """The native layout of jaxdata: the batch unchanged."""
    return batch


def _besides(batch: Batch) -> Batch:
    """The arrays of rows other than the five that every row has."""
    return {name: array for name, array in batch.items() if name not in _OURS}


def long(array: NDArray[Any]) -> NDArray[np.int64]:
    """The same numbers in int64, as torch's cross entropy takes them."""
    return array.astype(np.int64)


def _mask_of(batch: Batch, wanted: bool, seen: bool) -> Batch:
    """The full mask (batch, 1, seq_len, seq_len): True where a slot attends, if `seen`."""
    if not wanted:
        return {}
    mask = attention_mask(batch["segment_ids"])[..., None, :, :]
    return {"attention_mask": mask if seen else ~mask}


def _require_rows(batch: Batch, name: str) -> None:
    """Refuse batches that are not of packed rows, for the layout of a name."""
    if missing := sorted(_OURS - batch.keys()):
        raise InputError(
            f"layout={name!r} takes packed rows, and rows here lack {', '.join(missing)}: keep "
            "them in rows.map(f), or use a function of your own; for preference pairs layout='hf', "
            "which gives TRL's DPO batches, or layout='jaxdata'"
        )


@dataclass(frozen=True)
class HuggingFace:
    """For causal language models of transformers, `model(**batch)`; int64.

    `input_ids` and `position_ids`; `labels`, which a model shifts by one itself: the label of a
    slot is the target of the slot before it, -100 where there is no loss; and `shift_labels`, the
    targets in their own slots. Models and the Trainer prefer `shift_labels`, which also hold the
    target of a row's last slot.

    `use_cache` is False, and there is no `attention_mask`: transformers finds the documents of a
    row by positions that restart, but only if neither a mask nor a cache is given; with a cache,
    the documents of a row attend to each other. With flash attention, transformers does so only in
    batches of one row.

    Preference pairs become what TRL's `DPOTrainer` makes of its own: see :func:`preference_pairs`.

    Args:
        attention_mask: add a full mask, bool (batch, 1, seq_len, seq_len), for models that ignore
            positions; takes a lot of memory.
        cu_seqlens: add `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`, which
            flash attention takes for batches of several rows.

    >>> from numpy import array as a
    >>> batch = {"inputs": a([5, 6, 7]), "targets": a([6, 0, 8]), "segment_ids": a([1, 1, 2]),
    ...          "positions": a([0, 1, 0]), "loss_mask": a([True, False, True])}
    >>> [HuggingFace()(batch)[name].tolist() for name in ("labels", "shift_labels", "use_cache")]
    [[-100, 6, -100], [6, -100, 8], False]
    """

    attention_mask: bool = False
    cu_seqlens: bool = False

    def __call__(self, batch: Batch, /) -> Batch:
        """See `Layout`; raises InputError for rows whose positions do not restart."""
        if "inputs" not in batch and all(f"{side}_inputs" in batch for side in SIDES):
            return preference_pairs(batch)
        _require_rows(batch, "hf")
        check_restarts(batch, "layout='hf': transformers")
        targets = np.where(batch["loss_mask"], long(batch["targets"]), IGNORED)
        labels = np.full_like(targets, IGNORED)
        labels[..., 1:] = targets[..., :-1]
        return {
            "input_ids": long(batch["inputs"]),
            "labels": labels,
            "shift_labels": targets,
            "position_ids": long(batch["positions"]),
            "use_cache": np.array(False),
            **_mask_of(batch, self.attention_mask, seen=True),
            **(_for_flash_attention(batch) if self.cu_seqlens else {}),
            **_besides(batch),
        }


def preference_pairs(batch: Batch) -> Batch:
    """Pairs as TRL's `DPOTrainer` has them: all chosen texts, then all rejected ones.

    `input_ids`, `attention_mask` and `completion_mask`, each int64 (2 batch, seq_len + 1): a row
    here is a whole text, the target of its last slot included. The completion mask is 1 for tokens
    of an answer.

    >>> from numpy import array as a
    >>> side = {"inputs": a([[5, 6, 0]]), "targets": a([[6, 7, 0]]), "segment_ids": a([[1, 1, 0]]),
    ...         "loss_mask": a([[False, True, False]])}
    >>> pair = {f"{name}_{of}": array for name in SIDES for of, array in side.items()}
    >>> {name: array[0].tolist() for name, array in preference_pairs(pair).items()}
    {'input_ids': [5, 6, 7, 0], 'attention_mask': [1, 1, 1, 0], 'completion_mask': [0, 0, 1, 0]}
    """

    def both(name: str) -> np.ndarray:
        return long(np.concatenate([batch[f"{side}_{name}"] for side in SIDES]))

    # Every token of a text but the first is the target of a slot, and there is no padding before.
    filled, targets = both("segment_ids") > 0, both("targets")
    return {
        "input_ids": _after(both("inputs")[..., :1], targets),
        "attention_mask": _after(long(filled[..., :1]), long(filled)),
        "completion_mask": _after(long(np.zeros_like(filled[..., :1])), both("loss_mask")),
    }


def _after(first: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.concatenate([first, others], axis=-1)


def _for_flash_attention(batch: Batch) -> Batch:
    found = varlen(batch["segment_ids"])
    names = {"cu_seqlens": "cu_seq_lens", "max_seqlen": "max_length"}
    return {f"{names[name]}_{of}": array for name, array in found.items() for of in "qk"}


def check_restarts(batch: Batch, trainer: str) -> None:
    """Refuse positions that run along the row, where they tell a trainer its documents."""
    segments, positions = batch["segment_ids"], batch["positions"]
    begins = (segments[..., 1:] != segments[..., :-1]) & (segments[..., 1:] > 0)
    if positions[..., 1:][begins].any():
        raise InputError(
            f"{trainer} finds the documents of a row by positions that restart, but the positions "
            "of these rows run along the row: pack with positions='segment'"
        )


def maxtext(batch: Batch) -> Batch:
    """MaxText's: int32 arrays, with loss where `targets_segmentation` is not 0.

    `inputs`, `targets`, `inputs_position`, `targets_position`, `inputs_segmentation`,
    `targets_segmentation`.

    >>> from numpy import array as a
    >>> batch = {"inputs": a([5, 6, 7]), "targets": a([6, 0, 8]), "segment_ids": a([1, 1, 2]),
    ...          "positions": a([0, 1, 0]), "loss_mask": a([True, False, True])}
    >>> maxtext(batch)["targets_segmentation"].tolist()
    [1, 0, 2]
    """
    _require_rows(batch, "maxtext")
    segments, positions = batch["segment_ids"], batch["positions"]
    return {
        "inputs": batch["inputs"],
        "targets": batch["targets"],
        "inputs_position": positions,
        "targets_position": positions,
        "inputs_segmentation": segments,
        "targets_segmentation": segments * batch["loss_mask"],
        **_besides(batch),
    }


@dataclass(frozen=True)
class Megatron:
    """For Megatron-Core, as its GPT datasets have it; documents of a row are kept apart.

    `tokens`, `labels` and `position_ids` (int64), `loss_mask` (float32), and by default
    `attention_mask`, of seq_len² bytes a row. Attention kernels that take no mask want `cu_seqlens`
    instead, which are small. With neither, Megatron's attention is causal over the whole row:
    documents see those before them.

    Args:
        attention_mask: add a mask, bool (batch, 1, seq_len, seq_len), True where a slot must not
            attend; None for one unless there are `cu_seqlens`.
        cu_seqlens: add the starts of the segments of a row, int32 (batch, seq_len + 1), padding
            counted as a segment, filled with seq_len; and `max_seqlen`, int32 (batch,), the length
            of the longest. For context parallelism by document, where padding counts to the segment
            before it, also `cu_seqlens_q`, `cu_seqlens_q_padded` and `max_seqlen_q`, as
            `PackedSeqParams` has them: see `feed.layouts.padded_cu_seqlens`.
    """

    attention_mask: bool | None = None
    cu_seqlens: bool = False

    def __call__(self, batch: Batch, /) -> Batch:
        _require_rows(batch, "megatron")
        segments, masked = batch["segment_ids"], self.attention_mask
        return {
            "tokens": long(batch["inputs"]),
            "labels": long(batch["targets"]),
            "loss_mask": batch["loss_mask"].astype(np.float32),
            "position_ids": long(batch["positions"]),
            **_mask_of(batch, not self.cu_seqlens if masked is None else masked, seen=False),
            **(row_cu_seqlens(segments) | padded_cu_seqlens(segments) if self.cu_seqlens else {}),
            **_besides(batch),
        }


LAYOUTS: dict[str, Layout] = {
    "jaxdata": native,
    "maxtext": maxtext,
    "hf": HuggingFace(),
    "megatron": Megatron(),
}
Named = str | Mapping[str, Any] | Layout
"""a name, `{name: {option: value}}`, or a layout itself"""


def layout(given: Named) -> Layout:
    """The layout that is meant.

    Args:
        given: a name of the registry; `"module:function"`, which imports the module; either of
            them with options, `{"megatron": {"cu_seqlens": True}}`; or a function of a batch.

    Raises:
        InputError: there is no such layout, or it has no such option.

    >>> layout({"megatron": {"cu_seqlens": True}})
    Megatron(attention_mask=None, cu_seqlens=True)
    """
    if callable(given):
        return given
    named = check_named(given)
    (name, options), *_ = [(named, {})] if isinstance(named, str) else named.items()
    found: Any = LAYOUTS[name] if name in LAYOUTS else function_named(name, "layout=")
    if not options:
        return found  # type: ignore[no-any-return]
    how: Any = replace if name in LAYOUTS else partial
    return how(found, **options)  # type: ignore[no-any-return]


def check_named(given: Any) -> str | dict[str, Any]:
    """A name of a layout, perhaps with options; imports nothing.

    Raises:
        InputError: it names none, or an option that it does not have.
    """
    name, options = given, dict[str, Any]()
    if isinstance(given, Mapping) and len(given) == 1:
        name, options = next((name, {} if more is None else more) for name, more in given.items())
    if not isinstance(name, str) or not (name in LAYOUTS or is_place(name)):
        raise InputError(
            f"layout={given!r}: expected one of {', '.join(map(repr, LAYOUTS))}, 'module:function' "
            "for one of your own, {name: {option: value}}, or in Python a function of a batch"
        )
    known = vars(LAYOUTS[name]) if is_dataclass(LAYOUTS.get(name)) else {}
    right = isinstance(options, Mapping) and (
        name not in LAYOUTS
        or (options.keys() <= known.keys() and all(isinstance(o, bool) for o in options.values()))
    )
    if not right:
        has = f"options, true or false, are {', '.join(known)}" if known else "it has no options"
        raise InputError(f"layout={given!r}: {has}; expected {{name: {{option: value}}}}")
    return {name: dict(options)} if options else name


def stored_layout(given: Named) -> Layout:
    """The layout for rows that are written: without masks that nobody asked for.

    A mask of a row has as many numbers as the square of its tokens, and can be made of them again.
    """
    found = layout(given)
    if isinstance(found, Megatron) and found.attention_mask is None:
        return replace(found, attention_mask=False)
    return found


def map_leaves(function: Callable[[str, Any], Any], batch: Any, name: str = "") -> Any:
    """The same structure, with `function(name, leaf)` in place of each leaf.

    The name of a leaf is its path, `labels` or `0.inputs`; that of a batch of one leaf is empty.

    >>> map_leaves(lambda name, leaf: f"{name}={leaf}", {"x": (1, [2])})
    {'x': ('x.0=1', ['x.1.0=2'])}
    """
    if not isinstance(batch, _CONTAINERS):
        return function(name, batch)
    inside = batch.items() if isinstance(batch, Mapping) else enumerate(batch)
    mapped = {
        key: map_leaves(function, value, f"{name}.{key}" if name else str(key))
        for key, value in inside
    }
    if isinstance(batch, Mapping):
        return mapped
    if hasattr(batch, "_fields"):
        return type(batch)(*mapped.values())
    return list(mapped.values()) if isinstance(batch, list) else tuple(mapped.values())


def leaves(batch: Any) -> dict[str, Any]:
    """The leaves of a batch, by name.

    >>> leaves(([5, 6], {"mask": True}))
    {'0.0': 5, '0.1': 6, '1.mask': True}
    """
    found: dict[str, Any] = {}
    map_leaves(found.__setitem__, batch)
    return found


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array or a number of numpy; others are constants of a batch.

    Raises:
        InputError: it is neither.
    """
    if isinstance(leaf, _PLAIN):
        return isinstance(leaf, np.generic)  # numpy's float64 is a float
    if not hasattr(leaf, "__array__"):
        raise InputError(
            f"the layout put a {type(leaf).__name__} into a batch: expected arrays and plain "
            "constants, in dicts, lists or tuples"
        )
    return True


Ids = NDArray[Any]


def attention_mask(segment_ids: Ids) -> NDArray[np.bool_]:
    """The causal mask within segments: which slots (columns) each slot (row) attends to.

    Args:
        segment_ids: (…, seq_len).

    Returns:
        bool (…, seq_len, seq_len), True where a slot attends.

    >>> attention_mask(np.array([1, 1, 2])).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    same = segment_ids[..., :, None] == segment_ids[..., None, :]
    return np.asarray(same & np.tri(segment_ids.shape[-1], dtype=bool))


def cu_seqlens(segment_ids: Ids, length: int | None = None) -> tuple[NDArray[np.int32], int]:
    """Cumulative sequence lengths of a batch as one stream of slots, and the longest sequence.

    For the `varlen` functions of flash attention, with queries and keys of shape
    (batch * seq_len, heads, width): each run of one segment in a row is a sequence.

    Args:
        segment_ids: (batch, seq_len).
        length: pad to this many numbers with empty sequences, for kernels that need one shape.
            `pack(..., max_segments=n)` bounds the numbers by `batch * (n + 1) + 1`.

    Returns:
        int32 (sequences + 1,) or (length,), from 0 to the number of slots; and the longest length.

    >>> numbers, longest = cu_seqlens(np.array([[1, 1, 2, 0], [1, 1, 1, 1]]))
    >>> numbers.tolist(), longest
    ([0, 2, 3, 4, 8], 4)
    """
    found = np.append(np.flatnonzero(_begins(segment_ids)), segment_ids.size).astype(np.int32)
    if length is not None and len(found) > length:
        raise InputError(
            f"cu_seqlens of {len(found)} numbers do not fit into length={length}: increase it, or "
            "bound the segments of a row with pack(..., max_segments=n)"
        )
    filled = np.full(length or len(found), segment_ids.size, np.int32)
    filled[: len(found)] = found
    return filled, int(np.diff(found).max(initial=0))


def varlen(segment_ids: Ids, length: int | None = None) -> dict[str, NDArray[np.int32]]:
    """`cu_seqlens` as arrays of a batch, for a layout of your own.

    >>> sorted(varlen(np.array([[1, 1, 2, 0]])))
    ['cu_seqlens', 'max_seqlen']
    """
    numbers, longest = cu_seqlens(segment_ids, length)
    return {"cu_seqlens": numbers, "max_seqlen": np.array(longest, np.int32)}


def row_cu_seqlens(segment_ids: Ids) -> dict[str, NDArray[np.int32]]:
    """`cu_seqlens` of each row, in arrays of one shape.

    Returns:
        `cu_seqlens`, int32 (…, seq_len + 1), padded with seq_len, and `max_seqlen`, int32 (…).

    >>> row_cu_seqlens(np.array([[1, 1, 2, 0]]))["cu_seqlens"].tolist()
    [[0, 2, 3, 4, 4]]
    """
    numbers = _sorted_places(_begins(segment_ids))
    return {"cu_seqlens": numbers, "max_seqlen": np.diff(numbers, axis=-1).max(axis=-1)}


def padded_cu_seqlens(segment_ids: Ids) -> dict[str, NDArray[np.int32]]:
    """The segments of each row for context parallelism by document, as Megatron-Core names them.

    Padding counts to the segment before it: rows of `pack(..., multiple=2 * n)` give each segment a
    multiple of 2n slots, which n parts share. A row of padding has one segment, of length 0.

    Returns:
        int32 (…, seq_len + 1) each: `cu_seqlens_q`, the cumulative lengths of the segments without
        padding, filled with their sum; and `cu_seqlens_q_padded`, where each begins in the row,
        filled with seq_len. int32 (…): `max_seqlen_q`, the length of the longest with its padding.

    >>> found = padded_cu_seqlens(np.array([[1, 1, 1, 0, 2, 0]]))
    >>> [found[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_q_padded", "max_seqlen_q")]
    [[[0, 3, 4, 4, 4, 4, 4]], [[0, 4, 6, 6, 6, 6, 6]], [4]]
    """
    slots, filled = segment_ids.shape[-1], segment_ids > 0
    begins = _begins(segment_ids) & filled
    begins[..., :1] = True
    padded = _sorted_places(begins)
    before = np.zeros((*segment_ids.shape[:-1], slots + 1), np.int32)
    np.cumsum(filled, axis=-1, out=before[..., 1:])
    return {
        "cu_seqlens_q": np.take_along_axis(before, padded, axis=-1),
        "cu_seqlens_q_padded": padded,
        "max_seqlen_q": np.diff(padded, axis=-1).max(axis=-1),
    }


def _sorted_places(chosen: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The chosen slots of each row, filled with seq_len: int32 (…, seq_len + 1)."""
    slots = chosen.shape[-1]
    places = np.where(chosen, np.arange(slots, dtype=np.int32), np.int32(slots))
    end = np.full((*chosen.shape[:-1], 1), slots, np.int32)
    return np.concatenate([np.sort(places, axis=-1), end], axis=-1)


def _begins(segment_ids: Ids) -> NDArray[np.bool_]:
    """Slots at which a segment or padding begins; the first slot of a row always does."""
    begins = np.ones(segment_ids.shape, bool)
    begins[..., 1:] = segment_ids[..., 1:] != segment_ids[..., :-1]
    return begins


A = TypeVar("A")
"""an array, of numpy or JAX"""


def head_tail(array: A, parts: int, axis: int = -1) -> A:
    """An array in the order of a loader with `context_parallel=parts`.

    Args:
        array: of numpy or JAX, its slots in the order of rows.
        parts: *n*; 2n divides the number of slots.
        axis: of the slots.

    >>> import numpy as np
    >>> head_tail(np.arange(8), 2).tolist()
    [0, 1, 6, 7, 2, 3, 4, 5]
    """
    found: A = _taken(array, _order(parts), axis)
    return found


def in_row_order(array: A, parts: int, axis: int = -1) -> A:
    """The inverse of `head_tail`: slots of a row, or what was computed for them, in its order.

    Args:
        array: of numpy or JAX, its slots in the order of a loader with `context_parallel=parts`.
        parts: *n*; 2n divides the number of slots.
        axis: of the slots.

    >>> import numpy as np
    >>> in_row_order(np.array([0, 1, 6, 7, 2, 3, 4, 5]), 2).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    order = _order(parts)
    found: A = _taken(array, [order.index(chunk) for chunk in range(2 * parts)], axis)
    return found


def _order(parts: int) -> list[int]:
    """The chunks, part by part."""
    return [chunk for part in range(parts) for chunk in (part, 2 * parts - 1 - part)]


def _taken(array: Any, chunks: list[int], axis: int) -> Any:
    if len(chunks) == 2:
        return array
    axis %= array.ndim
    before, slots, after = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    if slots % len(chunks):
        raise _no_multiple(slots, len(chunks) // 2)
    cut = array.reshape(*before, len(chunks), slots // len(chunks), *after)
    return cut[(slice(None),) * axis + (chunks,)].reshape(array.shape)


def _no_multiple(slots: int, parts: int) -> InputError:
    return InputError(
        f"context_parallel={parts} cuts rows into {2 * parts} chunks, which do not divide "
        f"seq_len={slots}: choose a seq_len that is a multiple of {2 * parts}"
    )


def in_parts(layout: Layout, parts: int, table: RowTable | None) -> Layout:
    """A layout whose arrays are in the order of `head_tail`.

    Args:
        layout: whose arrays have their slots in the order of rows.
        parts: *n*; 1 for that order.
        table: of the rows, or of those that they were made of; None if unknown.

    Raises:
        InputError: `parts` do not divide the rows, or the layout makes no sense in another order.
    """
    if parts == 1:
        return layout
    for _, section in table.sections() if table is not None else ():
        if section.seq_len % (2 * parts):
            raise _no_multiple(section.seq_len, parts)
    if getattr(layout, "cu_seqlens", False):
        raise InputError(
            f"cu_seqlens with context_parallel={parts}: they say where documents begin in a row, "
            "and its slots are in another order. Kernels that take cu_seqlens divide each "
            "document among devices themselves: leave context_parallel out; or keep documents "
            "apart by segment_ids and positions, without cu_seqlens"
        )
    return partial(_head_tail, layout, parts)


def _head_tail(layout: Layout, parts: int, batch: Batch) -> Any:
    """A batch of a layout in that order; raises InputError where no axis is the sequence."""
    rows, seq_len = next(iter(batch.values())).shape[:2]

    def ordered(name: str, leaf: Any) -> Any:
        if not is_array(leaf) or leaf.ndim == 0 or leaf.shape == (rows,):
            return leaf
        axes = [axis for axis in range(1, leaf.ndim) if leaf.shape[axis] == seq_len]
        if not axes:
            raise InputError(
                f"context_parallel={parts}: {name!r} has shape {leaf.shape}, of which no axis "
                f"after the first is the sequence, seq_len={seq_len}: leave the array out, or "
                "order it yourself with jaxdata.feed.layouts.head_tail"
            )
        for axis in axes:
            leaf = head_tail(leaf, parts, axis)
        return leaf

    return map_leaves(ordered, layout(batch))
