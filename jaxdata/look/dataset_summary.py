"""The contents of a dataset, its sources and views, as JSON values and as lines and a table."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from jaxdata.base.errors import counted
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.lease import read_history
from jaxdata.dataset.manifest import ViewAccount, ViewEntry
from jaxdata.dataset.opening import ConvertedDataset, ConvertedDocuments, Dataset
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dataset.views.source_view import account_lines
from jaxdata.look.terminal import printable, table
from jaxdata.storage import open_store

_PERCENTILES = (1, 10, 50, 90, 99)
_MOST_HISTORY = 20
"""conversions of a dataset that are shown: the last ones"""
_OF_NO_CHOICE = {"fingerprints", "order", "version", "unicode"}
"""facts of a view that nobody chose"""
_SHOWN = ("text_bytes", "tokens_per_byte", "loss_tokens", "quarantined", "dropped")
"""statistics that are printed; `--json` has all"""


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
    names = [f"{split}/{name}" for split, some in dataset.splits.items() for name in some]
    return described | {"sources": {name: _describe_source(dataset[name]) for name in names}}


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
    if isinstance(documents.base, ConvertedDocuments):
        entry = documents.base.entry
        described |= {
            "shards": len(entry.all_shards),
            "bytes": sum(shard.bytes for shard in entry.all_shards),
            "inputs": len(entry.inputs),
            "deleted": entry.deleted.model_dump(),
            "parameters": entry.parameters,
            "statistics": entry.statistics,
            "views": {name: described_view(view) for name, view in entry.views.items()},
        }
    return described


def _lengths(lengths: NDArray[Any]) -> dict[str, float]:
    """Tokens per document: minimum, percentiles, maximum and mean."""
    if not len(lengths):
        return {}
    at = np.percentile(lengths, (0, *_PERCENTILES, 100), method="inverted_cdf").astype(int).tolist()
    names = ("min", *(f"p{each}" for each in _PERCENTILES), "max")
    return dict(zip(names, at, strict=True)) | {"mean": float(lengths.mean(dtype=np.float64))}


def described_view(view: ViewEntry) -> dict[str, Any]:
    """A view as plain JSON values: its size, its account and what it was made with."""
    names = {"generation", "documents", "tokens", "fingerprint", "parameters", "account"}
    return view.model_dump(include=names)


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
            yield from map(printable, _source_lines(name, source))
    if history := described.get("history"):
        yield f"history, {counted(len(history), 'conversion')}:"
        for made in history[-_MOST_HISTORY:]:
            yield printable(f"    {made['date']}, jaxdata {made['version']}: {made['command']}")


def _source_lines(name: str, source: Mapping[str, Any]) -> Iterator[str]:
    arrays = ", ".join(f"{side} ({dtype})" for side, dtype in source.get("side", {}).items())
    yield (
        f"{name}: {counted(source['shards'], 'shard')}, {source['bytes'] / 1e6:,.1f} MB, from "
        f"{counted(source['inputs'], 'file')}{', with loss masks' if source['masked'] else ''}"
        f"{', side arrays ' if arrays else ''}{arrays}"
    )
    if gone := source["deleted"]["documents"]:
        size = counted(source["deleted"]["tokens"], "token")
        yield f"    deleted: {counted(gone, 'document')} of {size}"
    statistics = {key: source["statistics"].get(key) for key in _SHOWN}
    for kind, facts in (("parameters", source["parameters"]), ("statistics", statistics)):
        shown = [f"{key} {_short(value)}" for key, value in facts.items() if not _long(value)]
        if shown:
            yield f"    {kind}: {', '.join(shown)}"
    for view in source["views"].items():
        yield from (f"    {line}" for line in _view_lines(*view))


def _view_lines(name: str, view: Mapping[str, Any]) -> Iterator[str]:
    """What a view keeps and drops."""
    given = view["parameters"].items()
    chosen = ((key, _short(value)) for key, value in given if key not in _OF_NO_CHOICE)
    made = ", ".join(f"{key} {said}" for key, said in chosen if said not in ("", "()", "None"))
    yield f"view {name}{made and ': '}{made}"
    yield from (f"    {line}" for line in account_lines(ViewAccount(**view["account"])))


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
        for view in views.items():
            yield from (f"    {printable(line)}" for line in _view_lines(*view))
