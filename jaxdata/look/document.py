"""One document of a dataset decoded, and one row drawn in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import equal_runs
from jaxdata.converter.chat.formatting import texts_like_tokens
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.views.source_view import described_fate, fate_lines
from jaxdata.look.terminal import counted, excerpt, fit, printable
from jaxdata.look.trace import Piece, came_from, origin_of, place_lines

_MOST_CHARACTERS = 4_000
_NO_LOSS = ("⟦", "⟧")
_SPECIAL = ("⟪", "⟫")


def describe_document(dataset: Dataset, split: str, source: str, number: int) -> dict[str, Any]:
    """A document as plain JSON values: tokens, text, origin, loss."""
    read = dataset.source(split, source)
    documents: Any = read.base
    if not 0 <= number < len(documents):
        raise InputError(
            f"no document {number} in {split}/{source}: it has 0 to {len(documents) - 1}"
        )
    item = documents[number]
    tokens = np.asarray(item["tokens"])
    loss = np.asarray(item.get("loss_mask", np.ones(len(tokens), bool)))
    side = {name: item[name].tolist() for name in documents.side}
    return {
        "source": f"{split}/{source}",
        "document": number,
        "length": len(tokens),
        "origin": vars(origin_of(documents, number)),
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


def _pieces(dataset: Dataset, tokens: NDArray[Any]) -> Iterator[dict[str, Any]]:
    """Text and special tokens of a run of tokens, in order; tokens without a text are left out."""
    texts = {i: text for text, i in dataset.tokenizer.special_tokens.items()}
    at = np.flatnonzero(np.isin(tokens, list(texts)))
    for run, special in zip(np.split(tokens, at), [None, *tokens[at].tolist()], strict=True):
        if special is not None:
            yield {"text": texts[special], "special": True}
        if text := dataset.decode(run[special is not None :]):
            yield {"text": text, "special": False}


def document_text(described: dict[str, Any]) -> Text:
    """The text of a described document, at most 4,000 characters.

    Text without loss is in brackets. So are special tokens, in others: text that only looks like
    one ("<|im_start|>" in six pieces) is not.
    """
    shown, left = Text(), _MOST_CHARACTERS
    for part in described["parts"]:
        inner = Text()
        for piece in part["pieces"]:
            text = piece["text"][:left]
            left -= len(text)
            visible = "\n".join(printable(line) for line in text.split("\n"))
            if piece["special"] and visible:
                inner.append(visible.join(_SPECIAL), "bold cyan")
            else:
                inner.append(visible, "" if part["loss"] else "dim")
        if inner and not part["loss"]:
            inner = Text.assemble((_NO_LOSS[0], "dim"), inner, (_NO_LOSS[1], "dim"))
        shown.append_text(inner)
    pieces = [piece for part in described["parts"] for piece in part["pieces"]]
    size = sum(len(piece["text"]) for piece in pieces)
    if size > _MOST_CHARACTERS:
        rest = size - _MOST_CHARACTERS
        shown.append(f"\n… {rest:,} more characters (use --json)", "dim")
    if found := texts_like_tokens("\n".join(p["text"] for p in pieces if not p["special"])):
        shown.append(f"\ntext, and no special tokens: {printable(', '.join(found))}", "dim")
    return shown


def described_lines(described: dict[str, Any]) -> Iterator[Text]:
    """A described document: what it is, its text, and in which steps it is, where that is known."""
    name = printable(described["source"])
    loss = f", {described['tokens_with_loss']:,} with loss" if described["masked"] else ""
    came = came_from(described["origin"])
    yield Text(
        f"{name}:{described['document']}: {counted(described['length'], 'token')}{loss}"
        f"{came and ', from '}{came}"
    )
    if not described["length"]:
        yield Text("it has no tokens: it was deleted, or had none")
    for line in fate_lines(described["view"]) if "view" in described else ():
        yield Text(printable(line))
    yield document_text(described)
    if "documents" in described:
        nowhere: dict[str, Any] = {"pieces": []}
        places = [*place_lines(next(iter(described["documents"]), nowhere))]
        yield from [Text("\nIts places in the run:", "bold"), *places] if places else ()


_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_MOST_LINES = 4
_MOST_SEGMENTS = 20


class Said(NamedTuple):
    """What is said of a segment below a drawn row."""

    words: str
    begins: str | None
    """its first text; None if no tokenizer is known"""


def row_title(row: Mapping[str, NDArray[Any]], number: int, rows: int) -> str:
    """A row in a line: its segments, and its slots that are filled and that have loss."""
    ids = row["segment_ids"]
    return (
        f"row {number:,} of {rows:,}: {counted(int(ids.max(initial=0)), 'segment')}, "
        f"{int((ids > 0).sum()):,} of {len(ids):,} slots filled, "
        f"{int((row['loss_mask'] > 0).sum()):,} with loss"
    )


def said_of(pieces: Sequence[Piece]) -> list[Said]:
    """Which documents the segments of a row are from, and how they begin."""
    return [
        Said(
            f"{printable(piece.source)}:{piece.document}  tokens {piece.tokens[0]:,} to "
            f"{piece.tokens[1] - 1:,} of {piece.length:,} in {piece.slots[1] - piece.slots[0]:,} "
            "slots",
            piece.excerpt,
        )
        for piece in pieces
    ]


def row_lines(
    row: Mapping[str, NDArray[Any]], segments: Sequence[Said], width: int, *, explained: bool = True
) -> Iterator[Text]:
    """Lines of at most `width` columns, readable without colours.

    Each segment has a letter, lower case where targets have no loss; a dot is padding. `row` has
    `segment_ids` and `loss_mask` (seq_len,), `segments` are in its order.
    """
    slots = len(row["segment_ids"])
    in_cell = -(-slots // (_MOST_LINES * width))
    cells = _cells(row["segment_ids"], row["loss_mask"], in_cell)
    for first in range(0, len(cells), width):
        yield _bar(cells[first : first + width])
    each = f"{in_cell} slots" if in_cell > 1 else "a slot"
    if explained:
        yield Text(f"a character is {each}; lower case has no loss, dots are padding", "dim")
    for number, said in enumerate(segments[:_MOST_SEGMENTS], 1):
        line = Text(_letter(number), _style(number))
        yield line.append(f" {said.words}", "default on default")
        if said.begins is not None:
            yield Text(f"  “{fit(excerpt(said.begins), width - 4)}”", "dim")
    if len(segments) > _MOST_SEGMENTS:
        yield Text(f"and {len(segments) - _MOST_SEGMENTS:,} more segments")


def _cells(ids: NDArray[Any], loss: NDArray[Any], in_cell: int) -> list[tuple[int, bool]]:
    """For each cell the segment at its middle, and whether any of its slots has loss."""
    starts = np.arange(0, len(ids), in_cell)
    middles = np.minimum(starts + in_cell // 2, len(ids) - 1)
    with_loss = np.logical_or.reduceat(loss, starts)
    return list(zip(ids[middles].tolist(), with_loss.tolist(), strict=True))


def _bar(cells: Sequence[tuple[int, bool]]) -> Text:
    line = Text()
    for segment, loss in cells:
        letter = _letter(segment) if loss else _letter(segment).lower()
        line.append(*((letter, _style(segment, loss)) if segment else (".", "dim")))
    return line


def _letter(segment: int) -> str:
    return ascii_uppercase[(segment - 1) % len(ascii_uppercase)]


def _style(segment: int, loss: bool = True) -> str:
    color = _COLORS[(segment - 1) % len(_COLORS)]
    return f"black on {color}" if loss else color
