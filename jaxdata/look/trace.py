"""Tracing: the documents in a row, the rows of a document, and the steps that train them.

Also of deleted documents, of which the lengths are kept: the rows of a run follow from its dataset,
config and state. The state is read wherever a run saved it.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.config import Config, load, load_config, open_data
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.opening import ConvertedDocuments, Dataset
from jaxdata.dataset.views.kept_documents import in_source
from jaxdata.dataset.views.source_view import described_fate
from jaxdata.feed.loader import Loader
from jaxdata.feed.state import state_files
from jaxdata.look.terminal import printable
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.reading import ranges_to_read
from jaxdata.storage import local_path

# Rows of tables and elements of JSON arrays count from 0, lines and pieces of a text from 1.
_FROM_ZERO = re.compile(r"\.(parquet|arrow|json(\.\w+)?)$", re.IGNORECASE)
_TEXT = re.compile(r"\.txt(\.\w+)?$", re.IGNORECASE)
_EXCERPT_TOKENS = 100
Decode = Callable[[Any], str]


class Tracer:
    """Explains the rows of a loader, as `pack` and `mix` return them, by its sizes and skips.

    Args:
        loader: of the run.
        decode: `dataset.decode`; None if no tokenizer is known.
        resumed: whether the loader was set to the state of a run: what it trained is marked.
    """

    def __init__(self, loader: Loader, decode: Decode | None, *, resumed: bool = False) -> None:
        table = row_table(loader.rows)
        if table is None or not table.sources:
            raise InputError("only rows as pack and mix return them can be traced")
        self.loader, self._table, self._decode = loader, table, decode
        self.names = table.names
        self.next_row = loader.next_row if resumed else None

    @classmethod
    def of(cls, config: Config, state: str | None) -> "Tracer":
        """That of the run of a config, in its state, if one is given (see `read_state`)."""
        loader = load(config)
        if state is not None:
            loader.set_state(read_state(state))
        return cls(loader, decoder(open_data(config)), resumed=state is not None)

    def documents(self, source: str) -> Documents:
        """All documents of a source; passages and pieces have their numbers."""
        return self._read(source).base

    def _read(self, source: str) -> Documents:
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

    def rows(self, rows: Sequence[int], of: tuple[str, int] | None = None) -> list[dict[str, Any]]:
        """All segments of some rows of the run, or those of a (source, document), for JSON.

        Each is a passage (see `passage_of`), whose `tokens` are its inputs and its last target,
        with the `step` (None if the row is in no step: skipped, or in a dropped last batch), the
        `row_in_batch`, the `row` of the run, the `slots` `[first, stop)` in the row, and how many
        of these are `without_loss`: masked context, first slots whose targets were trained in the
        previous window.
        """
        segments = self._table.segments(np.asarray(rows, np.int64))
        tokens = ranges_to_read(self._table, segments).tokens  # none beyond a view's cut
        found = self._table.origins(segments)
        multiple = np.array([self._table.section_at(row).multiple for row in rows], np.int64)
        taken = found.slots + -found.slots % multiple[found.row]
        before = np.cumsum(taken) - taken
        first = before - before[np.searchsorted(found.row, found.row)]  # in its row
        where = found.row, found.source, found.document, found.start, tokens
        pieces = []
        for at, number, document, start, length, slot, slots, context in np.column_stack(
            [*where, first, found.slots, found.context]
        ).tolist():
            source, row = self.names[number], rows[at]
            if of is None or of == (source, document):
                step, place = self.loader.step_of_row(row) or (None, None)
                docs, stop = self.documents(source), start + length
                piece = {
                    **passage_of(docs, source, document, self._decode, start, stop),
                    "step": step,
                    "row_in_batch": place,
                    "row": row,
                    "slots": (slot, slot + slots),
                    "without_loss": context,
                }
                pieces.append(piece)
        return pieces

    def pieces(self, source: str, document: int) -> list[dict[str, Any]]:
        """All segments of a document in the run, in order of training."""
        return self.rows(self.rows_of(source, document), of=(source, document))

    def rows_of(self, source: str, document: int, rows: int | None = None) -> list[int]:
        """The rows of the run that hold a part of a document, of the first `rows` (None: all)."""
        numbers = self._read(source).numbers_of(document)
        return sorted({row for n in numbers for row in self._table.rows_with(source, n, rows)})

    def described_batch(self, step: int | None, row: int | None) -> dict[str, Any]:
        """The segments of a batch (None: of the next one), or of one of its rows, for JSON."""
        step = self.loader.step if step is None else step
        rows = self.loader.batch_rows(step).tolist()
        if row is not None and row >= len(rows):
            raise InputError(f"the batch of step {step} has rows 0 to {len(rows) - 1}")
        pieces = self.rows(rows if row is None else [rows[row]])
        seq_len = self.seq_len(rows[0])
        return {"next_row": self.next_row, "step": step, "seq_len": seq_len, "pieces": pieces}

    def described(
        self, source: str, document: int, start: int = 0, matches: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """Where a document comes from, and which steps train it, for JSON.

        Its excerpt begins at a token; `matches` are kept with it, ranges of its `tokens`.
        """
        source = self.named(source)
        passage = passage_of(self.documents(source), source, document, self._decode, start)
        pieces = self.pieces(source, document)
        for piece in pieces:
            del piece["source"], piece["document"], piece["length"]
            if matches:
                first, stop = piece["tokens"]
                spans = [match["tokens"] for match in matches]
                piece["holds_match"] = any(first < b and a < stop for a, b in spans)
            if self.next_row is not None:
                piece["trained"] = piece["step"] is not None and piece["row"] < self.next_row
        read = self._read(source)
        filters = [each for each in read.functions if each.startswith("filter ")]
        return {
            **passage,
            "matches": matches,
            "pieces": pieces,
            **described_fate(read, document),
            "left_out": [] if read.numbers_of(document) else filters,
        }


def passage_of(
    documents: Documents,
    source: str,
    document: int,
    decode: Decode | None,
    start: int = 0,
    stop: int | None = None,
) -> dict[str, Any]:
    """Tokens `[start, stop)` of a document, or fewer at its end, for JSON.

    The `source` as it is called, the number of the `document` and its `length` in tokens; which
    `tokens` of it these are, their `origin` (see `origin_of`), and as `excerpt` the beginning of
    their text: None if no tokenizer is known.
    """
    if not 0 <= document < len(documents):
        raise InputError(
            f"no document {source}:{document}: {source!r} has 0 to {len(documents) - 1}"
        )
    length = int(documents.lengths[document])
    stop = length if stop is None else min(stop, length)
    begin = documents.read(document, start, min(stop, start + _EXCERPT_TOKENS))
    return {
        "source": source,
        "document": document,
        "tokens": (start, stop),
        "length": length,
        "origin": origin_of(documents, document, start),
        "excerpt": None if decode is None else decode(begin),
    }


_ORIGIN = ("shard", "record", "file", "member", "line", "row", "piece")


def origin_of(documents: Documents, document: int, token: int = 0) -> dict[str, Any]:
    """The origin of a token of a document, for JSON; all None in other tools' data.

    The `shard` and the number of the `record` in it, from 0; the input `file`, the `member` inside
    if that is an archive, and the number there: the `line`, from 1, the `row` of a table or an
    array, from 0, or the `piece` of a text file, from 1, as huge ones are read in pieces; and what
    the conversion `kept` of its record (`--keep`).
    """
    origin: dict[str, Any] = dict.fromkeys(_ORIGIN) | {"kept": {}}
    documents, document, token = in_source(documents, document, token)
    if not isinstance(documents, ConvertedDocuments):
        return origin
    index, layout = documents.index, documents.spec
    shard = int(index.locate(np.array([document]))[0][0])
    before = index.stored[int(index.shard_starts[shard]) : document]
    record = int(layout.records(before).sum()) + token // layout.record_tokens
    file, number, member = index.origin(document)
    unit = "piece" if _TEXT.search(file) else "row" if _FROM_ZERO.search(file) else "line"
    origin |= {"shard": documents.entry.shards[shard].name, "record": record, "file": file}
    if member is None:
        origin[unit] = number
    else:
        origin |= {"member": member.name, member.counted: member.number}
    return origin | {"kept": documents.kept(document)}


def decoder(dataset: Dataset) -> Decode | None:
    """The function that decodes tokens; None if no tokenizer is known."""
    try:
        return dataset.decode if dataset.tokenizer else None
    except InputError:  # another tool's dataset, without a tokenizer
        return None


def came_from(origin: Mapping[str, Any]) -> str:
    """`pages.tar: a.jsonl line 17`; empty if unknown."""
    if origin["file"] is None:
        return ""
    names = [origin["file"], origin["member"]]
    came = ": ".join(printable(name) for name in names if name is not None)
    unit = next(name for name in ("line", "row", "piece") if origin[name] is not None)
    whole = unit == "piece" and origin["piece"] == 1  # or the beginning of it
    return came if whole else f"{came} {unit} {origin[unit]:,}"


class Trained(NamedTuple):
    """A row that held a deleted document; of a document that no run trained, only what it is."""

    source: str
    document: int
    run: str = ""
    step: int | None = None
    """from 0"""
    row: int | None = None
    """of the run"""


def deleted_documents(config: Config, runs: Sequence[str]) -> Iterator[Trained]:
    """The deleted documents of the data of a config: the rows of runs that held them.

    Then those that none of these runs trained.

    Args:
        config: of all runs.
        runs: where their states are (see `read_state`); empty for the run of the config itself.
    """
    dataset, trained, own = open_data(config), set[tuple[str, int]](), config.train.output
    for run in runs or ([own] if Path(own).is_dir() else []):
        state = read_state(run)
        data = (state.get("run") or {}).get("data") or {}
        known = {n: _generation(dataset, config.split, n, each, run) for n, each in data.items()}
        generations = {name: each for name, each in known.items() if each is not None}
        loader = load(load_config(config, {"generations": generations}))
        loader.set_state(state)
        tracer = Tracer(loader, None)
        for source in tracer.names:
            gone = tracer.documents(source).blanked
            for document in [] if gone is None else gone.tolist():
                for row in tracer.rows_of(source, document, loader.next_row):
                    if (place := loader.step_of_row(row)) is not None:
                        trained.add((source, document))
                        yield Trained(source, document, run, place[0], row)
    for source in dataset.splits.get(config.split, []):
        docs = dataset.with_views({}).source(config.split, source).base
        deleted = docs.index.deleted.tolist() if isinstance(docs, ConvertedDocuments) else []
        yield from (Trained(source, each) for each in deleted if (source, each) not in trained)


def _generation(
    dataset: Dataset, split: str, source: str, fingerprint: Any, run: str
) -> int | None:
    """The generation of a source that a state is of; None of another tool's data, which has one."""
    for generation in count():
        try:
            docs = dataset.source(split, source, generation=generation)
        except DatasetError:  # a view of another one
            continue
        except InputError as error:
            if generation == 0:
                return None
            raise InputError(
                f"{run}: its state is of data {source}: {fingerprint}, which no generation of "
                f"{split}/{source} in {dataset.url} is: give the config of that run"
            ) from error
        if docs.fingerprint.startswith(str(fingerprint)):
            return generation
    return None


def read_state(path: str | Path) -> dict[str, Any]:
    """Read a loader's state.

    Args:
        path: a JSON file; an Orbax checkpoint with the state as one of its items; or a folder of
            such checkpoints or the output of `jaxdata train`, whose newest one is read.

    Raises:
        InputError: there is no state at `path`, or that of the newest checkpoint is damaged.
    """
    root = local_path(path, "copy the checkpoint, or only its loader's state, from the bucket")
    if not root.exists():
        raise InputError(f"no state at {root}: there is no such file or folder")
    for files in [[root]] if root.is_file() else _checkpoints(root):
        found = [_content(file) for file in files]
        for state in found:
            if isinstance(state, dict) and "next_row" in state:
                return state
        if root.is_dir() and None in found:
            raise InputError(
                f"{files[found.index(None)]} is damaged: it is no JSON. Give the folder of an "
                "earlier checkpoint"
            )
    raise InputError(
        f"no loader state in {root}: expected the JSON of loader.get_state(), a checkpoint that "
        "contains it, or a folder of checkpoints named by their steps"
    )


def _checkpoints(root: Path) -> Iterator[list[Path]]:
    """Files that may contain a state: of this checkpoint, then of those below, newest first."""
    yield state_files(root)
    yield state_files(root, "*/")
    for folder in (root, root / "checkpoints"):
        if folder.is_dir():
            steps = [each for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()]
            for step in sorted(steps, key=lambda each: int(each.name), reverse=True):
                yield state_files(step, "*/")


def _content(file: Path) -> Any:
    """The JSON of a file; None if it has none."""
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
