"""The output of `jaxdata trace`: the segments of a batch, or the steps that train documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.cells import cell_len
from rich.text import Text

from jaxdata.look.terminal import excerpt, fit, printable
from jaxdata.views.fates import fate_lines
from jaxdata.wording import counted

_INDENT = "    "
_MOST_PIECES = 20

Fields = Mapping[str, Any]


def batch_lines(found: Fields, width: int) -> Iterator[Text]:
    """Lines for each row and each of its segments; excerpts are cut at `width` columns."""
    for row, group in groupby(found["pieces"], key=lambda piece: piece["row"]):
        pieces = list(group)
        padding = found["seq_len"] - sum(p["slots"][1] - p["slots"][0] for p in pieces)
        segments = f"{len(pieces)} segment{'s'[: len(pieces) > 1]}"
        where = f"step {found['step']:,}, row {pieces[0]['row_in_batch']:,} of the batch"
        line = Text(f"{where} (row {row:,} of the run): {segments}, {padding:,} slots padding")
        line.stylize("bold")
        yield line
        for piece in pieces:
            yield _piece_line(piece)
            yield from _passage_lines(piece, width)


def _piece_line(piece: Fields) -> Text:
    line = Text(_INDENT)
    line.append(f"{printable(piece['source'])}:{piece['document']}", "cyan")
    line.append(f"  {_tokens(piece)} of {piece['length']:,}  {_slots(piece)}")
    if piece["without_loss"]:
        line.append(f", {piece['without_loss']:,} of them without loss")
    return line


def _tokens(piece: Fields) -> str:
    return f"tokens {piece['tokens'][0]:,} to {piece['tokens'][1] - 1:,}"


def _slots(piece: Fields) -> str:
    return f"in slots {piece['slots'][0]:,} to {piece['slots'][1] - 1:,}"


def _passage_lines(passage: Fields, width: int) -> Iterator[Text]:
    origin, inside = passage["origin"], _INDENT * 2
    if origin["file"] is not None:
        came = f"{inside}{_came_from(origin)}"
        lies = f"in {printable(origin['shard'])} record {origin['record']:,}"
        one_line = cell_len(came) + cell_len(lies) + 2 <= width
        yield Text(f"{came}, {lies}" if one_line else f"{came}\n{inside}{lies}")
    if origin["kept"]:
        kept = ", ".join(f"{key}: {value}" for key, value in origin["kept"].items())
        yield Text(inside + fit(excerpt(kept), max(width - len(inside), 10)))
    if passage["excerpt"] is not None:
        begins = fit(excerpt(passage["excerpt"]), max(width - len(inside) - 2, 10))
        yield Text(f"{inside}“{begins}”", "dim")


def _came_from(origin: Fields) -> str:
    names = [origin["file"], origin["member"]]
    came = f"from {': '.join(printable(name) for name in names if name is not None)}"
    counted = next(name for name in ("line", "row", "piece") if origin[name] is not None)
    whole = counted == "piece" and origin["piece"] == 1  # or the beginning of it
    return came if whole else f"{came} {counted} {origin[counted]:,}"


def origin_line(origin: Fields) -> str:
    """`, from pages.tar: a.jsonl line 17`; empty if unknown."""
    return "" if origin["file"] is None else f", {_came_from(origin)}"


def document_lines(found: Fields, width: int) -> Iterator[Text]:
    """Lines for each document, with the steps that train it."""
    for document in found["documents"]:
        line = Text(f"{printable(document['source'])}:{document['document']}", "bold cyan")
        line.append(f"  {counted(document['length'], 'token')}", "not bold default")
        if document["match"]:
            first, stop = document["match"]
            line.append(f", the text in {first:,} to {stop - 1:,}", "not bold default")
        yield line
        yield from _passage_lines(document, width)
        view = document.get("view")
        for said in fate_lines(view) if view else ():
            yield Text(f"{_INDENT}{printable(said)}", "yellow")
        if view is None or view["copies"]:
            yield from _places(document["pieces"])
    more = found["found"] - len(found["documents"])
    if more:
        yield Text(f"and {more:,} more documents (--limit shows them)")
    if not found["found"]:
        yield Text("no document of this run contains the text")


def _places(pieces: list[Fields]) -> Iterator[Text]:
    if not pieces:
        yield Text(f"{_INDENT}in no row of this run")
    for piece in pieces[:_MOST_PIECES]:
        line = Text(_INDENT)
        if piece["step"] is None:
            line.append(f"row {piece['row']:,} of the run is left out")
        else:
            line.append(f"{_when(piece)}step {piece['step']:,}, row {piece['row_in_batch']:,}")
        line.append(f"  {_tokens(piece)}  {_slots(piece)}")
        if piece.get("holds_match"):
            line.append("  has the text", "green")
        yield line
    if len(pieces) > _MOST_PIECES:
        yield Text(f"{_INDENT}and {len(pieces) - _MOST_PIECES:,} more (--json has all)")


def _when(piece: Fields) -> str:
    trained = piece.get("trained")
    return "" if trained is None else "was in " if trained else "will be in "
