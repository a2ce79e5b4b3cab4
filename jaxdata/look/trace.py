"""Tracing: the documents in a row, and the rows of a document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.text import Text

from jaxdata.base.errors import InputError
from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import in_source
from jaxdata.dataset.views.source_view import described_fate, fate_lines
from jaxdata.feed.loader import Loader
from jaxdata.look.terminal import excerpt, fit, printable
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.reading import ranges_to_read
from jaxdata.rows.table import Segments

# Rows of tables and elements of JSON arrays count from 0, lines and pieces of a text from 1.
_FROM_ZERO = re.compile(r"\.(parquet|arrow|json(\.\w+)?)$", re.IGNORECASE)
_TEXT = re.compile(r"\.txt(\.\w+)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Origin:
    """The origin of one token; unknown fields are None, as in other tools' datasets."""

    shard: str | None = None
    record: int | None = None
    """number within the shard, from 0"""
    file: str | None = None
    member: str | None = None
    """the file inside, if `file` is an archive"""
    line: int | None = None
    """of that file, from 1; or:"""
    row: int | None = None
    """of a table or an array, from 0; or:"""
    piece: int | None = None
    """of a text file, from 1: huge ones are read in pieces"""
    kept: dict[str, Any] = field(default_factory=dict)
    """fields of its record that the conversion kept (`--keep`)"""


def origin_of(documents: Documents, document: int, token: int = 0) -> Origin:
    """The origin of a token of a document."""
    documents, document, token = in_source(documents, document, token)
    if not isinstance(documents, ConvertedDocuments):
        return Origin()
    index, layout = documents.index, documents.spec
    shard = int(index.locate(np.array([document]))[0][0])
    before = index.stored[int(index.shard_starts[shard]) : document]
    record = int(layout.records(before).sum()) + token // layout.record_tokens
    file, row = index.origin(document)
    where: dict[str, Any] = {_counted(file): row}
    if member := index.member(document):
        where = {"member": member.name, member.counted: member.number}
    name, kept = documents.entry.shards[shard].name, documents.kept(document)
    return Origin(name, record, file, kept=kept, **where)


def _counted(file: str) -> str:
    """The unit of a file's records, judged by its name."""
    if _TEXT.search(file):
        return "piece"
    return "row" if _FROM_ZERO.search(file) else "line"


_INDENT = "    "
_MOST_PIECES = 20
_MOST_MATCHES = 3

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


def came_from(origin: Fields) -> str:
    """`pages.tar: a.jsonl line 17`; empty if unknown."""
    if origin["file"] is None:
        return ""
    names = [origin["file"], origin["member"]]
    came = ": ".join(printable(name) for name in names if name is not None)
    counted = next(name for name in ("line", "row", "piece") if origin[name] is not None)
    whole = counted == "piece" and origin["piece"] == 1  # or the beginning of it
    return came if whole else f"{came} {counted} {origin[counted]:,}"


def document_lines(documents: Sequence[Fields], width: int) -> Iterator[Text]:
    """Lines for each document, with the steps that train it."""
    for document in documents:
        line = Text(f"{printable(document['source'])}:{document['document']}", "bold cyan")
        line.append(f"  {counted(document['length'], 'token')}", "not bold default")
        for match in document["matches"][:_MOST_MATCHES]:
            first, stop = match["tokens"]
            line.append(f", the text in {first:,} to {stop - 1:,}", "not bold default")
        yield line
        yield from _passage_lines(document, width)
        view = document.get("view")
        for said in fate_lines(view) if view else ():
            yield Text(f"{_INDENT}{printable(said)}", "yellow")
        yield from place_lines(document)


def place_lines(document: Fields) -> Iterator[Text]:
    """Lines for the steps that train a document; none where a view leaves it out."""
    pieces, view = document.get("pieces"), document.get("view")
    if pieces is None:  # of a dataset alone
        return
    if view is not None and not view["copies"]:
        return
    if by := " or ".join(document.get("left_out", ())):
        yield Text(f"{_INDENT}left out by {printable(by)}", "yellow")
    elif not pieces:
        yield Text(f"{_INDENT}in no row of this run")
    for piece in pieces[:_MOST_PIECES]:
        line = Text(_INDENT)
        if piece["step"] is None:
            line.append(f"row {piece['row']:,} of the run is left out")
        else:
            trained = piece.get("trained")
            when = "" if trained is None else "was in " if trained else "will be in "
            line.append(f"{when}step {piece['step']:,}, row {piece['row_in_batch']:,}")
        line.append(f"  {_tokens(piece)}  {_slots(piece)}")
        if piece.get("holds_match"):
            line.append("  has the text", "green")
        yield line
    if len(pieces) > _MOST_PIECES:
        yield Text(f"{_INDENT}and {len(pieces) - _MOST_PIECES:,} more (--json has all)")


_EXCERPT_TOKENS = 100

Decode = Callable[[Any], str]


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A range of tokens of a document."""

    source: str
    document: int
    tokens: tuple[int, int]
    """`[first, stop)`"""
    length: int
    """tokens of the document"""
    origin: Origin
    excerpt: str | None
    """the beginning of the passage as text; None if no tokenizer is known"""


@dataclass(frozen=True, kw_only=True)
class Piece(Passage):
    """A segment of a row; its tokens are its inputs and its last target."""

    step: int | None
    """None if the row is in no step: skipped, or in a dropped last batch"""
    row_in_batch: int | None
    row: int
    """of the run"""
    slots: tuple[int, int]
    """`[first, stop)` in the row"""
    without_loss: int
    """masked context: first slots whose targets were trained in the previous window"""


class Tracer:
    """Explains the rows of a loader, as `pack` and `mix` return them, by its sizes and skips."""

    def __init__(self, loader: Loader, decode: Decode | None) -> None:
        table = row_table(loader.rows)
        if table is None or not table.sources:
            raise InputError("only rows as pack and mix return them can be traced")
        self._loader, self._table, self._decode = loader, table, decode
        self.names = table.names

    def documents(self, source: str) -> Documents:
        """All documents of a source; passages and pieces have their numbers."""
        return self.read(source).base

    def read(self, source: str) -> Documents:
        """The documents of a source that the run reads: those of a view, where it names one."""
        if source not in self.names:
            raise InputError(f"no source {source!r} in this run: it has {', '.join(self.names)}")
        return self._table.sources[source].documents[0]

    def named(self, source: str) -> str:
        """The name that the run has for a source, given that or `"<split>/<source>"`."""
        known = {table.documents[0].name: name for name, table in self._table.sources.items()}
        return source if source in self.names else known.get(source, source)

    def seq_len(self, row: int) -> int:
        """Slots of a row of the run; amendments may change them."""
        return self._table.section_at(row).seq_len

    def batch(self, step: int) -> NDArray[np.int64]:
        return self._loader.batch_rows(step)

    def rows(self, rows: Sequence[int], of: tuple[str, int] | None = None) -> list[Piece]:
        """All segments of some rows of the run, or those of a (source, document)."""
        segments = self._table.segments(np.asarray(rows, np.int64))
        tokens = ranges_to_read(self._table, segments).tokens.tolist()  # none beyond a view's cut
        found = self._table.origins(segments)
        multiple = np.array([self._table.section_at(row).multiple for row in rows], np.int64)
        taken = found.slots + -found.slots % multiple[found.row]
        before = np.cumsum(taken) - taken
        first = before - before[np.searchsorted(found.row, found.row)]  # in its row
        chosen: Sequence[int] = range(len(tokens))
        if of is not None:
            same = (found.source == self.names.index(of[0])) & (found.document == of[1])
            chosen = np.flatnonzero(same).tolist()
        return [
            self._piece(rows[int(found.row[at])], found, at, int(first[at]), tokens[at])
            for at in chosen
        ]

    def _piece(self, row: int, found: Segments, at: int, slot: int, tokens: int) -> Piece:
        source = self.names[int(found.source[at])]
        start, slots = int(found.start[at]), int(found.slots[at])
        passage = self.passage(source, int(found.document[at]), start, start + tokens)
        step, row_in_batch = self._loader.step_of_row(row) or (None, None)
        return Piece(
            **vars(passage),
            step=step,
            row_in_batch=row_in_batch,
            row=row,
            slots=(slot, slot + slots),
            without_loss=int(found.context[at]),
        )

    def passage(
        self, source: str, document: int, start: int = 0, stop: int | None = None
    ) -> Passage:
        """Tokens `[start, stop)` of a document, or fewer at its end."""
        return passage_of(self.documents(source), source, document, self._decode, start, stop)

    def pieces(self, source: str, document: int) -> list[Piece]:
        """All segments of a document in the run, in order of training."""
        return self.rows(self.rows_of(source, document), of=(source, document))

    def rows_of(self, source: str, document: int, rows: int | None = None) -> list[int]:
        """The rows of the run that hold a part of a document, of the first `rows` (None: all)."""
        numbers = self.read(source).numbers_of(document)
        return sorted({row for n in numbers for row in self._table.rows_with(source, n, rows)})


def passage_of(
    documents: Documents,
    source: str,
    document: int,
    decode: Decode | None,
    start: int = 0,
    stop: int | None = None,
) -> Passage:
    """Tokens `[start, stop)` of a document, or fewer at its end; `source` is what it is called."""
    if not 0 <= document < len(documents):
        raise InputError(
            f"no document {source}:{document}: {source!r} has 0 to {len(documents) - 1}"
        )
    length = int(documents.lengths[document])
    stop = length if stop is None else min(stop, length)
    begin = documents.read(document, start, min(stop, start + _EXCERPT_TOKENS))
    return Passage(
        source=source,
        document=document,
        tokens=(start, stop),
        length=length,
        origin=origin_of(documents, document, start),
        excerpt=None if decode is None else decode(begin),
    )


class Explanation:
    """Explains the rows of a loader; `resumed` if the loader was set to the state of the run."""

    def __init__(self, loader: Loader, dataset: Dataset, *, resumed: bool) -> None:
        self._loader, self._dataset = loader, dataset
        self.next_row = loader.next_row if resumed else None
        self._decode = decoder(dataset)
        self._tracer = Tracer(loader, self._decode)

    def batch(self, step: int | None, row: int | None) -> dict[str, Any]:
        """The segments of a batch (None: of the next one), or of one of its rows."""
        step = self._loader.step if step is None else step
        rows = self._tracer.batch(step).tolist()
        if row is not None and row >= len(rows):
            raise InputError(f"the batch of step {step} has rows 0 to {len(rows) - 1}")
        chosen = rows if row is None else [rows[row]]
        pieces = [asdict(piece) for piece in self._tracer.rows(chosen)]
        seq_len = self._tracer.seq_len(rows[0])
        return {"next_row": self.next_row, "step": step, "seq_len": seq_len, "pieces": pieces}

    def reads(self, source: str) -> bool:
        """Whether the run reads a source, by its own name or `"<split>/<source>"`."""
        return self._tracer.named(source) in self._tracer.names

    @property
    def sources(self) -> dict[str, Documents]:
        """All documents of each source of the run, whatever its view leaves out."""
        return {name: self._tracer.documents(name) for name in self._tracer.names}

    def documents(self, chosen: Sequence[tuple[str, int]]) -> dict[str, Any]:
        """Where documents come from, and which steps train them."""
        described = [self.document(source, document) for source, document in chosen]
        return {"next_row": self.next_row, "documents": described}

    def document(
        self, source: str, document: int, start: int = 0, matches: Sequence[Fields] = ()
    ) -> dict[str, Any]:
        """The same of one; its excerpt begins at a token, `matches` are kept with it."""
        source = self._tracer.named(source)
        passage = self._tracer.passage(source, document, start)
        pieces = [asdict(piece) for piece in self._tracer.pieces(source, document)]
        for piece in pieces:
            del piece["source"], piece["document"], piece["length"]
            if matches:
                first, stop = piece["tokens"]
                spans = [match["tokens"] for match in matches]
                piece["holds_match"] = any(first < b and a < stop for a, b in spans)
            if self.next_row is not None:
                piece["trained"] = piece["step"] is not None and piece["row"] < self.next_row
        read = self._tracer.read(source)
        filters = [each for each in read.functions if each.startswith("filter ")]
        found = {"matches": matches, "pieces": pieces, **described_fate(read, document)}
        found["left_out"] = [] if read.numbers_of(document) else filters
        return asdict(passage) | found


def decoder(dataset: Dataset) -> Any:
    """The function that decodes tokens; None if no tokenizer is known."""
    try:
        return dataset.tokenizer and dataset.decode
    except InputError:  # another tool's dataset, without a tokenizer
        return None
