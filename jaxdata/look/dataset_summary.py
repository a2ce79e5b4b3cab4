"""The contents of a dataset and the statistics of its conversion, as JSON values and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from jaxdata.base.errors import DatasetError
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.history import maker_of, read_history
from jaxdata.dataset.manifest import Manifest, SourceEntry, ViewAccount, ViewEntry
from jaxdata.dataset.opening import ConvertedDataset
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dataset.views.source_view import account_lines
from jaxdata.look.terminal import counted, plain_table, printable
from jaxdata.storage import open_store
from jaxdata.tokenizers.encoders import EncodingSummary


def statistics_tables(dataset: Any, described: Mapping[str, Any]) -> Iterator[Table]:
    """The statistics of all sources that were converted, three of them side by side."""
    sources = described["sources"].items()
    counted = [name for name, source in sources if "files" in source.get("statistics", {})]
    for first in range(0, len(counted), 3):
        yield statistics_table(dataset.manifest, counted[first : first + 3])


def statistics_table(manifest: Manifest, names: Sequence[str]) -> Table:
    """Lay out the statistics of sources (`"<split>/<source>"`) side by side.

    Raises:
        DatasetError: they are not as the converter writes them.
    """
    tokenizer = manifest.tokenizer
    ids = {"EOD": tokenizer.eod_id, "BOS": tokenizer.bos_id, "padding": tokenizer.pad_id}
    known = ", ".join(f"{role} {number}" for role, number in ids.items() if number is not None)
    table = plain_table("", ["counted"], [printable(name) for name in names])
    table.title = None
    table.caption = f"ids: {known}; vocabulary of {tokenizer.vocab_size:,}"
    table.caption_justify = "left"
    try:
        columns = [list(_lines(manifest.sources[name])) for name in names]
        lines = list(zip(*columns, strict=True))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(
            f"the statistics of {', '.join(names)} are not as the converter writes them "
            f"({error!r}); look at the dataset without --statistics, or convert it again"
        ) from None
    for cells in lines:
        table.add_row(Text(cells[0][0]), *(cell for _, cell in cells))
    return table


def _lines(entry: SourceEntry) -> Iterator[tuple[str, str]]:
    counted = entry.statistics
    files = counted["files"]
    yield "files read", f"{files['processed']:,}"
    yield "  with documents", f"{files['successful']:,}"
    yield "  without", f"{files['discarded']:,}"
    yield "records read", f"{counted['records']:,}"
    yield "  quarantined", f"{sum(counted['quarantined'].values()):,}"
    yield "  dropped", f"{sum(counted['dropped'].values()):,}"
    yield "  blank", f"{counted.get('blank', 0):,}"
    yield "  added", f"{counted.get('added', 0):,}"
    yield "documents", f"{entry.documents:,}"
    for what, name in (("characters", "characters"), ("bytes", "text_bytes")):
        yield what, f"{counted[name]:,}"
        yield "  before cleaning", f"{counted[f'raw_{what}']:,}"
        yield "  of documents left out", f"{counted.get(f'dropped_{name}', 0):,}"
        yield "  per document", f"{counted[f'{what}_per_document']:,.1f}"
    yield "tokens", f"{entry.tokens:,}"
    yield "  with loss", f"{counted['loss_tokens']:,}"
    yield "  unknown", f"{counted['unknown_tokens']:,} ({counted['unknown_token_rate']:.3%})"
    yield "  per byte", f"{counted['tokens_per_byte']:.4f}"
    yield "  per document", f"{counted['tokens_per_document']:,.1f}"
    for percentile, length in counted["length_percentiles"].items():
        yield f"  {percentile.removeprefix('p')} % are at most", f"{length:,}"
    yield "  longest document", f"{counted['longest_document']:,}"


_History = Sequence[Mapping[str, Any]]
_PERCENTILES = (1, 10, 50, 90, 99)
_MOST_HISTORY = 20
"""conversions of a dataset that are shown: the last ones"""
_OF_NO_CHOICE = {"fingerprints", "order", "version", "unicode"}
"""facts of a view that nobody chose"""
_SHOWN = ("text_bytes", "tokens_per_byte", "loss_tokens", "quarantined", "dropped")


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Sources with their lengths, parameters and statistics; the tokenizer; the format."""
    described: dict[str, Any] = {"dataset": dataset.url}
    history_of = cache(lambda url: read_history(open_store(url)))
    if isinstance(dataset, ConvertedDataset):
        manifest = dataset.manifest
        described |= {
            "format": manifest.version,
            "dtype": manifest.dtype,
            "record_tokens": manifest.record_tokens,
            "tokenizer": manifest.tokenizer.model_dump(),
            "history": history_of(dataset.url),
        }
    described["sources"] = {
        f"{split}/{name}": _describe_source(dataset.source(split, name), history_of)
        for split, names in dataset.splits.items()
        for name in names
    }
    return described


def _describe_source(documents: Documents, history_of: Callable[[str], _History]) -> dict[str, Any]:
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
            "encoding": [*_encoding_lines(base.name, entry, history_of(base.store.url))],
        }
    return described


def _encoding_lines(name: str, entry: SourceEntry, history: _History) -> Iterator[str]:
    """What encoded a source, by generation where it has several; nothing where nobody knows."""
    stages = [*entry.generations, entry.as_generation()]
    found = [_encoded(maker_of(history, name, stage.fingerprint)) for stage in stages]
    first = 0
    for number, (stage, lines) in enumerate(zip(stages, found, strict=True)):
        if len(stages) == 1:
            yield from lines
        elif any(found) and stage.documents > first:
            said = "; ".join(lines) or "what encoded it is not known"
            yield f"generation {number}, documents {first:,} to {stage.documents - 1:,}: {said}"
        first = stage.documents


def _encoded(conversion: Mapping[str, Any] | None) -> list[str]:
    with suppress(ValueError):
        return [*EncodingSummary.model_validate((conversion or {}).get("encoding")).lines()]
    return []


def described_view(view: ViewEntry) -> dict[str, Any]:
    """A view as plain JSON values: its size, its account and what it was made with."""
    names = {"generation", "documents", "tokens", "fingerprint", "parameters", "account"}
    return view.model_dump(include={*names, "statistics"})


def view_lines(name: str, view: Mapping[str, Any]) -> Iterator[str]:
    """What a view keeps and drops."""
    given = view["parameters"].items()
    chosen = ((key, _short(value)) for key, value in given if key not in _OF_NO_CHOICE)
    made = ", ".join(f"{key} {said}" for key, said in chosen if said not in ("", "()", "None"))
    yield f"view {printable(name)}{made and ': '}{printable(made)}"
    for line in account_lines(ViewAccount(**view["account"])):
        yield f"    {printable(line)}"


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


def dataset_table(described: Mapping[str, Any]) -> Table:
    """One line per source: its size and the lengths of its documents."""
    headings = ["documents", "tokens", "median", "p90", "p99", "longest"]
    table = plain_table(
        f"{printable(described['dataset'])}, lengths in tokens", ["source"], headings
    )
    for name, source in described["sources"].items():
        lengths = source["lengths"]
        shown = (lengths.get(key) for key in ("p50", "p90", "p99", "max"))
        table.add_row(
            Text(printable(name)),
            f"{source['documents']:,}",
            f"{source['tokens']:,}",
            *("" if value is None else f"{value:,}" for value in shown),
        )
    return table


def dataset_lines(described: Mapping[str, Any]) -> Iterator[str]:
    """The tokenizer, and the parameters and statistics of each source."""
    if "tokenizer" in described:
        tokenizer = described["tokenizer"]
        named = " ".join(dict.fromkeys([tokenizer["kind"], printable(tokenizer["name"])]))
        ids = {key: "none" if value is None else value for key, value in tokenizer.items()}
        yield (
            f"tokenizer: {named}, "
            f"{tokenizer['vocab_size']:,} tokens, EOD {tokenizer['eod_id']}, "
            f"BOS {ids['bos_id']}, padding {ids['pad_id']}"
        )
        yield (
            f"format {described['format']}: {described['dtype']} tokens, records of up to "
            f"{described['record_tokens']:,}"
        )
    for name, source in described["sources"].items():
        yield from _source_lines(printable(name), source)
    if history := described.get("history"):
        yield f"history, {counted(len(history), 'conversion')}:"
    for made in (history or [])[-_MOST_HISTORY:]:
        said = f"{made['date']}, jaxdata {made['version']}: {made['command']}"
        yield f"    {printable(said)}"


def _source_lines(name: str, source: Mapping[str, Any]) -> Iterator[str]:
    if "shards" not in source:
        return
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
