"""A document, a batch and a row in a terminal: decoded, explained, drawn."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from string import ascii_uppercase
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from jaxdata.base.errors import InputError, counted
from jaxdata.base.ragged import AnyArray, equal_runs
from jaxdata.converter.chat.formatting import texts_like_tokens
from jaxdata.dataset.opening import Dataset
from jaxdata.dataset.views.source_view import described_fate, fate_lines
from jaxdata.look.terminal import excerpt, fit, printable, printable_lines
from jaxdata.look.trace import Decode, came_from, passage_of

Fields = Mapping[str, Any]
"""what `trace` describes, as plain values"""
_MOST_CHARACTERS = 4_000
_NO_LOSS, _SPECIAL = ("⟦", "⟧"), ("⟪", "⟫")
_INDENT = "    "
_MOST_PIECES = 20
_MOST_MATCHES = 3


def describe_document(dataset: Dataset, name: str, number: int) -> dict[str, Any]:
    """A document of `"<split>/<source>"` as plain JSON values: tokens, text, origin, loss."""
    read = dataset[name]
    documents: Any = read.base
    passage = passage_of(documents, name, number, None)
    item = documents[number]
    tokens = np.asarray(item["tokens"])
    loss = np.asarray(item.get("loss_mask", np.ones(len(tokens), bool)))
    side = {name: item[name].tolist() for name in documents.side}
    return {
        "source": name,
        "document": number,
        "length": len(tokens),
        "origin": passage["origin"],
        "tokens": tokens.tolist(),
        "masked": documents.masked,
        **described_fate(read, number),
        "tokens_with_loss": int(np.count_nonzero(loss[1:])),
        "parts": [
            {
                "loss": bool(loss[first]),
                "tokens": stop - first,
                "text": dataset.decode(tokens[first:stop]),
                "pieces": list(_pieces(dataset, tokens[first:stop])),
            }
            for first, stop in equal_runs(loss)
        ],
        **({"side": side} if side else {}),
    }


def _pieces(dataset: Dataset, tokens: AnyArray) -> Iterator[dict[str, Any]]:
    """Text and special tokens of a run of tokens, in order; tokens without a text are left out."""
    texts = {i: text for text, i in dataset.tokenizer.special_tokens.items()}
    at = np.flatnonzero(np.isin(tokens, list(texts)))
    for run, special in zip(np.split(tokens, at), [None, *tokens[at].tolist()], strict=True):
        if special is not None:
            yield {"text": texts[special], "special": True}
        if text := dataset.decode(run[special is not None :]):
            yield {"text": text, "special": False}


def document_text(described: Fields) -> Text:
    """The text of a described document, at most 4,000 characters.

    Text without loss is in brackets. So are special tokens, in others: text that only looks like
    one ("<|im_start|>" in six pieces) is not.
    """
    shown, left, plain = Text(), _MOST_CHARACTERS, list[str]()
    for part in described["parts"]:
        inner = Text()
        for piece in part["pieces"]:
            visible = printable_lines(piece["text"][: max(left, 0)])
            left -= len(piece["text"])
            plain += [] if piece["special"] else [piece["text"]]
            if piece["special"] and visible:
                inner.append(visible.join(_SPECIAL), "bold cyan")
            else:
                inner.append(visible, "" if part["loss"] else "dim")
        if inner and not part["loss"]:
            inner = Text.assemble((_NO_LOSS[0], "dim"), inner, (_NO_LOSS[1], "dim"))
        shown.append_text(inner)
    if left < 0:
        shown.append(f"\n… {-left:,} more characters (use --json)", "dim")
    if found := texts_like_tokens("\n".join(plain)):
        shown.append(f"\ntext, and no special tokens: {printable(', '.join(found))}", "dim")
    return shown


def document_lines(described: Fields) -> Iterator[Text]:
    """A described document: what it is, its text, and in which steps it is, where that is known."""
    loss = f", {described['tokens_with_loss']:,} with loss" if described["masked"] else ""
    came = came_from(described["origin"])
    yield Text(
        f"{printable(described['source'])}:{described['document']}: "
        f"{counted(described['length'], 'token')}{loss}{came and ', from '}{came}"
    )
    if not described["length"]:
        yield Text("it has no tokens: it was deleted, or had none")
    for line in fate_lines(described["view"]) if "view" in described else ():
        yield Text(printable(line))
    yield document_text(described)
    if "documents" in described:
        places = [line for each in described["documents"] for line in _place_lines(each)]
        yield from [Text("\nIts places in the run:", "bold"), *places] if places else ()


def traced_lines(documents: Sequence[Fields], width: int) -> Iterator[Text]:
    """Lines for each traced document, with the steps that train it."""
    for document in documents:
        line = Text(f"{printable(document['source'])}:{document['document']}", "bold cyan")
        line.append(f"  {counted(document['length'], 'token')}", "not bold default")
        for match in document["matches"][:_MOST_MATCHES]:
            first, stop = match["tokens"]
            line.append(f", the text in {first:,} to {stop - 1:,}", "not bold default")
        yield line
        yield from _passage_lines(document, width)
        for said in fate_lines(document["view"]) if "view" in document else ():
            yield Text(f"{_INDENT}{printable(said)}", "yellow")
        yield from _place_lines(document)


def _place_lines(document: Fields) -> Iterator[Text]:
    """Lines for the steps that train a document; none of a dataset alone, or beside a view."""
    pieces, view = document.get("pieces"), document.get("view")
    if pieces is None or (view is not None and not view["copies"]):
        return
    if by := " or ".join(document.get("left_out", ())):
        yield Text(f"{_INDENT}left out by {printable(by)}", "yellow")
    elif not pieces:
        yield Text(f"{_INDENT}in no row of this run")
    for piece in pieces[:_MOST_PIECES]:
        when = {None: "", True: "was in ", False: "will be in "}[piece.get("trained")]
        where = f"{when}step {piece['step'] or 0:,}, row {piece['row_in_batch']}"
        if piece["step"] is None:
            where = f"row {piece['row']:,} of the run is left out"
        has = ("  has the text", "green") if piece.get("holds_match") else ""
        yield Text.assemble(f"{_INDENT}{where}  {tokens_of(piece)}  {slots_of(piece)}", has)
    if len(pieces) > _MOST_PIECES:
        yield Text(f"{_INDENT}and {len(pieces) - _MOST_PIECES:,} more (--json has all)")


def batch_lines(found: Fields, width: int) -> Iterator[Text]:
    """Lines for each row and each of its segments; excerpts are cut at `width` columns."""
    for row, group in groupby(found["pieces"], key=lambda piece: piece["row"]):
        pieces = list(group)
        padding = found["seq_len"] - sum(p["slots"][1] - p["slots"][0] for p in pieces)
        where = f"step {found['step']:,}, row {pieces[0]['row_in_batch']:,} of the batch"
        segments = f"{counted(len(pieces), 'segment')}, {padding:,} slots padding"
        yield Text(f"{where} (row {row:,} of the run): {segments}", "bold")
        for piece in pieces:
            name = f"{printable(piece['source'])}:{piece['document']}"
            held = f"  {tokens_of(piece)} of {piece['length']:,}  {slots_of(piece)}"
            lost = piece["without_loss"]
            more = f", {lost:,} of them without loss" if lost else ""
            yield Text.assemble(_INDENT, (name, "cyan"), held, more)
            yield from _passage_lines(piece, width)


def _passage_lines(passage: Fields, width: int) -> Iterator[Text]:
    origin, inside = passage["origin"], _INDENT * 2
    if origin["file"] is not None:
        came = f"{inside}from {came_from(origin)}"
        lies = f"in {printable(origin['shard'])} record {origin['record']:,}"
        one_line = cell_len(came) + cell_len(lies) + 2 <= width
        yield Text(f"{came}, {lies}" if one_line else f"{came}\n{inside}{lies}")
    if origin["kept"]:
        kept = ", ".join(f"{key}: {value}" for key, value in origin["kept"].items())
        yield Text(inside + fit(excerpt(kept), max(width - len(inside), 10)))
    if passage["excerpt"] is not None:
        begins = fit(excerpt(passage["excerpt"]), max(width - len(inside) - 2, 10))
        yield Text(f"{inside}“{begins}”", "dim")


def tokens_of(piece: Fields) -> str:
    """Which tokens of its document a segment holds."""
    return f"tokens {piece['tokens'][0]:,} to {piece['tokens'][1] - 1:,}"


def slots_of(piece: Fields) -> str:
    """Which slots of its row a segment takes."""
    return f"in slots {piece['slots'][0]:,} to {piece['slots'][1] - 1:,}"


_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_MOST_LINES = 4
_MOST_SEGMENTS = 20
Said = tuple[str, str | None]
"""what is said of a segment below a drawn row, and its first text, if a tokenizer is known"""


def said_of(pieces: Sequence[Fields]) -> list[Said]:
    """Which documents the segments of a row are from, and how they begin."""
    return [
        (
            f"{printable(piece['source'])}:{piece['document']}  {tokens_of(piece)} of "
            f"{piece['length']:,} in {piece['slots'][1] - piece['slots'][0]:,} slots",
            piece["excerpt"],
        )
        for piece in pieces
    ]


def row_lines(
    row: Mapping[str, AnyArray],
    name: str,
    segments: Sequence[Said],
    width: int,
    *,
    explained: bool = True,
) -> Iterator[Text]:
    """What a row holds and a drawing of at most `width` columns, readable without colours.

    Each segment has a letter, lower case where targets have no loss; a dot is padding. `row` has
    `segment_ids` and `loss_mask` (seq_len,), `segments` are in its order, `name` says which it is.
    """
    ids, loss = row["segment_ids"], row["loss_mask"]
    yield Text(
        f"{name}: {counted(int(ids.max(initial=0)), 'segment')}, {int((ids > 0).sum()):,} of "
        f"{len(ids):,} slots filled, {int((loss > 0).sum()):,} with loss"
    )
    in_cell = -(-len(ids) // (_MOST_LINES * width))
    starts = np.arange(0, len(ids), in_cell)
    middles = np.minimum(starts + in_cell // 2, len(ids) - 1)
    cells = [*zip(ids[middles].tolist(), np.logical_or.reduceat(loss, starts), strict=True)]
    for first in range(0, len(cells), width):
        yield Text.assemble(*(_cell(*cell) for cell in cells[first : first + width]))
    if explained:
        each = f"{in_cell} slots" if in_cell > 1 else "a slot"
        yield Text(f"a character is {each}; lower case has no loss, dots are padding", "dim")
    for number, (words, begins) in enumerate(segments[:_MOST_SEGMENTS], 1):
        yield Text.assemble(_cell(number, True), (f" {words}", "default on default"))
        if begins is not None:
            yield Text(f"  “{fit(excerpt(begins), width - 4)}”", "dim")
    if len(segments) > _MOST_SEGMENTS:
        yield Text(f"and {len(segments) - _MOST_SEGMENTS:,} more segments")


def _cell(segment: int, loss: bool) -> tuple[str, str]:
    """A letter, and its style."""
    if not segment:
        return ".", "dim"
    letter = ascii_uppercase[(segment - 1) % len(ascii_uppercase)]
    color = _COLORS[(segment - 1) % len(_COLORS)]
    return (letter, f"black on {color}") if loss else (letter.lower(), color)


_ARRAYS = ("inputs", "segment_ids", "loss_mask")
_PRINTED_ROWS = 4
_BEGIN_TOKENS, _QUOTED = 60, 160


class ShownBatch(str):
    """What `show_batch` returns: the counts of the batch, in a line."""

    __slots__ = ()
    __repr__ = str.__str__


def show_batch(batch: Any, decode: Decode | None = None) -> ShownBatch:
    """Print a batch, or a row, in letters.

    Each segment has a letter, as in `jaxdata inspect --row`; of a batch the first four rows are
    printed. What is returned says the counts of the whole batch.

    Args:
        batch: as a loader gives it: a dict of arrays of numpy, jax or torch, with `inputs`,
            `segment_ids` and `loss_mask`, each (batch, seq_len) or (seq_len,).
        decode: `dataset.decode`, to show what each segment begins with.

    Raises:
        InputError: it lacks these arrays, as batches in another trainer's layout do.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0]]), seq_len=4)
    >>> jaxdata.show_batch(rows[0])
    row 0 of 1: 2 segments, 3 of 4 slots filled, 3 with loss
    ABB.
    a character is a slot; lower case has no loss, dots are padding
    A 1 slot
    B 2 slots
    batch of 1 row of 4: 2 segments, 3 slots with loss, 1 padding
    """
    if not isinstance(batch, Mapping) or not set(_ARRAYS) <= set(batch):
        given = sorted(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise InputError(
            f"show_batch: given {given}, expected a batch or a row with the arrays "
            f"{', '.join(_ARRAYS)}; a loader gives them with layout='jaxdata'"
        )
    arrays = {name: np.atleast_2d(np.asarray(batch[name])) for name in _ARRAYS}
    ids, console = arrays["segment_ids"], Console()
    for number in range(min(len(ids), _PRINTED_ROWS)):
        row, said = {name: array[number] for name, array in arrays.items()}, list[Said]()
        for first, stop in equal_runs(row["segment_ids"]):
            if row["segment_ids"][first]:
                some = row["inputs"][first : min(stop, first + _BEGIN_TOKENS)]
                # A character may be cut in two.
                begins = None if decode is None else decode(some).rstrip("\ufffd")[:_QUOTED]
                said.append((counted(stop - first, "slot"), begins))
        name, width = f"row {number} of {len(ids)}", min(console.width, 100)
        for line in row_lines(row, name, said, width, explained=not number):
            console.print(line, soft_wrap=True)
    if len(ids) > _PRINTED_ROWS:
        console.print(f"and {len(ids) - _PRINTED_ROWS:,} more rows", highlight=False)
    slots = counted(int(np.count_nonzero(arrays["loss_mask"])), "slot")
    return ShownBatch(
        f"batch of {counted(ids.shape[0], 'row')} of {ids.shape[1]:,}: "
        f"{counted(int(ids.max(-1).sum()), 'segment')}, {slots} with loss, "
        f"{ids.size - np.count_nonzero(ids):,} padding"
    )
