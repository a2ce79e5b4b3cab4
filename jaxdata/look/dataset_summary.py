"""The contents of a dataset and the statistics of its conversion, as JSON values and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from rich.table import Table

from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.history import maker_of, read_history
from jaxdata.dataset.manifest import SourceEntry, ViewAccount, ViewEntry
from jaxdata.dataset.opening import ConvertedDataset
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dataset.views.source_view import account_lines
from jaxdata.look.terminal import printable, table
from jaxdata.storage import open_store
from jaxdata.tokenizers.encoders.choice import EncodingSummary

_PERCENTILES = (1, 10, 50, 90, 99)
_MOST_HISTORY = 20
"""conversions of a dataset that are shown: the last ones"""
_OF_NO_CHOICE = {"fingerprints", "order", "version", "unicode"}
"""facts of a view that nobody chose"""
_SHOWN = ("text_bytes", "tokens_per_byte", "loss_tokens", "quarantined", "dropped")


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Sources with their lengths, parameters and statistics; the tokenizer; the format."""
    described: dict[str, Any] = {"dataset": dataset.url}
    if isinstance(dataset, ConvertedDataset):
        manifest = dataset.manifest
        described |= {
            "format": manifest.version,
            "dtype": manifest.dtype,
            "record_tokens": manifest.record_tokens,
            "tokenizer": manifest.tokenizer.model_dump(),
            "history": read_history(open_store(dataset.url)),
        }
    described["sources"] = {
        f"{split}/{name}": _describe_source(dataset.source(split, name))
        for split, names in dataset.splits.items()
        for name in names
    }
    return described


def _describe_source(documents: Documents) -> dict[str, Any]:
    described = {
        "documents": len(documents),
        "tokens": int(documents.lengths.sum(dtype=np.int64)),
        "masked": documents.masked,
        "lengths": _lengths(np.asarray(documents.lengths)),
        "fingerprint": documents.fingerprint,
    }
    if isinstance(documents, KeptDocuments):
        described["view"] = documents.view.name
    if side := documents.side:
        described["side"] = {name: values.dtype.name for name, values in side.items()}
    base = documents.base
    if isinstance(base, ConvertedDocuments):
        entry = base.entry
        described |= {
            "shards": len(entry.all_shards),
            "bytes": sum(shard.bytes for shard in entry.all_shards),
            "inputs": len(entry.inputs),
            "deleted": entry.deleted.model_dump(),
            "parameters": entry.parameters,
            "statistics": entry.statistics,
            "views": {name: described_view(view) for name, view in entry.views.items()},
            "encoding": [*_encoding_lines(base.name, entry, read_history(base.store))],
        }
    return described


def left_out(documents: Documents) -> Iterator[tuple[str, str, int]]:
    """(kind, reason, records) of what the conversion quarantined as bad or dropped on purpose."""
    statistics = documents.base.entry.statistics if documents.base.entry else {}
    for kind in ("quarantined", "dropped"):
        yield from ((kind, reason, n) for reason, n in statistics.get(kind, {}).items() if n)


def _lengths(lengths: Any) -> dict[str, float]:
    """Tokens per document: minimum, percentiles, maximum and mean."""
    if not len(lengths):
        return {}
    at = np.percentile(lengths, _PERCENTILES, method="inverted_cdf").tolist()
    return {
        "min": int(lengths.min()),
        **{f"p{p}": int(value) for p, value in zip(_PERCENTILES, at, strict=True)},
        "max": int(lengths.max()),
        "mean": float(lengths.mean(dtype=np.float64)),
    }


def described_view(view: ViewEntry) -> dict[str, Any]:
    """A view as plain JSON values: its size, its account and what it was made with."""
    names = {"generation", "documents", "tokens", "fingerprint", "parameters", "account"}
    return view.model_dump(include=names)


def _encoding_lines(
    name: str, entry: SourceEntry, history: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """What encoded a source, by generation where it has several; nothing where nobody knows."""
    stages, first = [*entry.generations, entry.as_generation()], 0
    for number, stage in enumerate(stages):
        made, lines = maker_of(history, name, stage.fingerprint) or {}, list[str]()
        with suppress(ValueError):
            lines = [*EncodingSummary.model_validate(made.get("encoding")).lines()]
        of = f"generation {number}, documents {first:,} to {stage.documents - 1:,}: "
        yield from (of + line if stages[1:] else line for line in lines)
        first = stage.documents


def dataset_lines(described: Mapping[str, Any]) -> Iterator[Table | str]:
    """A table of the sources, the tokenizer, the parameters and statistics of each source."""
    yield table(
        f"{printable(described['dataset'])}, lengths in tokens",
        ["source"],
        ["documents", "tokens", "median", "p90", "p99", "longest"],
        (
            [name, one["documents"], one["tokens"]]
            + [one["lengths"].get(key) for key in ("p50", "p90", "p99", "max")]
            for name, one in described["sources"].items()
        ),
    )
    if "tokenizer" in described:
        tokenizer = described["tokenizer"]
        named = " ".join(dict.fromkeys([tokenizer["kind"], printable(tokenizer["name"])]))
        ids = {key: "none" if value is None else value for key, value in tokenizer.items()}
        yield (
            f"tokenizer: {named}, {tokenizer['vocab_size']:,} tokens, EOD {ids['eod_id']}, "
            f"BOS {ids['bos_id']}, padding {ids['pad_id']}"
        )
        yield (
            f"format {described['format']}: {described['dtype']} tokens, records of up to "
            f"{described['record_tokens']:,}"
        )
    for name, source in described["sources"].items():
        if "shards" in source:
            yield from _source_lines(printable(name), source)
    if history := described.get("history"):
        yield f"history, {counted(len(history), 'conversion')}:"
        for made in history[-_MOST_HISTORY:]:
            said = f"{made['date']}, jaxdata {made['version']}: {made['command']}"
            yield f"    {printable(said)}"


def _source_lines(name: str, source: Mapping[str, Any]) -> Iterator[str]:
    masks = ", with loss masks" if source["masked"] else ""
    arrays = ", ".join(f"{side} ({dtype})" for side, dtype in source.get("side", {}).items())
    masks += f", side arrays {arrays}" if arrays else ""
    yield (
        f"{name}: {counted(source['shards'], 'shard')}, {source['bytes'] / 1e6:,.1f} MB, from "
        f"{counted(source['inputs'], 'file')}{masks}"
    )
    if gone := source["deleted"]["documents"]:
        size = counted(source["deleted"]["tokens"], "token")
        yield f"    deleted: {counted(gone, 'document')} of {size}"
    chosen = {key: source["statistics"].get(key) for key in _SHOWN}
    for kind, facts in (("parameters", source["parameters"]), ("statistics", chosen)):
        shown = {key: value for key, value in facts.items() if not _long(value)}
        if shown:
            said = ", ".join(f"{key} {_short(value)}" for key, value in shown.items())
            yield f"    {kind}: {printable(said)}"
    for view, described in source["views"].items():
        yield from (f"    {line}" for line in view_lines(view, described))
    for line in source["encoding"]:
        yield f"    {printable(line)}"


def view_lines(name: str, view: Mapping[str, Any]) -> Iterator[str]:
    """What a view keeps and drops."""
    given = view["parameters"].items()
    chosen = ((key, _short(value)) for key, value in given if key not in _OF_NO_CHOICE)
    made = ", ".join(f"{key} {said}" for key, said in chosen if said not in ("", "()", "None"))
    yield f"view {printable(name)}{made and ': '}{printable(made)}"
    for line in account_lines(ViewAccount(**view["account"])):
        yield f"    {printable(line)}"


def _long(value: Any) -> bool:
    """Whether a value is left out of a line: lists and empty values."""
    return isinstance(value, list) or value in ({}, None, "")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        inner = (f"{key}: {_short(each)}" for key, each in value.items() if not _long(each))
        return f"({', '.join(inner)})"
    if isinstance(value, list):
        return " and ".join(map(_short, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def views_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """The views of each source of a described dataset that has some."""
    sources = described["sources"].items()
    return {name: source["views"] for name, source in sources if source.get("views")}


def views_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """What the views of each source keep and drop."""
    if not found:
        yield "no views; jaxdata dedup makes them"
    for name, views in found.items():
        yield printable(name)
        yield from (f"    {line}" for view in views.items() for line in view_lines(*view))


def statistics_tables(dataset: Dataset, names: Sequence[str] = ()) -> Iterator[Table]:
    """The statistics of sources that were converted (all of them), three of them side by side.

    Raises:
        DatasetError: they are not as the converter writes them.
    """
    if not isinstance(dataset, ConvertedDataset):
        return
    tokenizer, entries = dataset.manifest.tokenizer, dataset.manifest.sources
    names = [n for n in names or entries if "files" in entries[n].statistics]
    ids = {"EOD": tokenizer.eod_id, "BOS": tokenizer.bos_id, "padding": tokenizer.pad_id}
    known = ", ".join(f"{role} {number}" for role, number in ids.items() if number is not None)
    for first in range(0, len(names), 3):
        some = names[first : first + 3]
        columns = [dict(_flat(entries[name])) for name in some]
        every = dict.fromkeys(what for column in columns for what in column)
        rows = ([what, *(column.get(what) for column in columns)] for what in every)
        shown = table("", ["counted"], some, rows)
        shown.caption = f"ids: {known}; vocabulary of {tokenizer.vocab_size:,}"
        yield shown


def _flat(entry: SourceEntry) -> Iterator[tuple[str, int | str]]:
    """What was counted, in words; of mappings each value."""
    yield "documents", entry.documents
    yield "tokens", entry.tokens
    for name, value in entry.statistics.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for key, each in inner:
            if isinstance(each, int | float):
                what = f"{name} {key}".replace("_", " ").strip()
                digits = 1 if each > 10 else 4
                yield what, f"{each:,.{digits}f}" if isinstance(each, float) else each
