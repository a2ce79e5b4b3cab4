"""The contents of a dataset, as JSON values and as lines and tables: its sources and views.

Also what each packing strategy makes of its documents: rows, padding, drops.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from jaxdata.base.errors import counted
from jaxdata.base.seeds import derive
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.lease import read_history
from jaxdata.dataset.manifest import ViewAccount
from jaxdata.dataset.opening import ConvertedDataset, ConvertedDocuments, Dataset
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dataset.views.source_view import account_lines, described_view
from jaxdata.look.terminal import printable, table
from jaxdata.rows.map_datasets import pack
from jaxdata.rows.packing.strategies import STRATEGIES
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


MOST_PLANNED = 400_000
"""documents of a split that are planned with every strategy; of more, a sample is"""


def compare_strategies(sources: Sequence[Any], *, seq_len: int) -> list[dict[str, Any]]:
    """Plan one epoch of `sources` (from `dataset.source`) with every strategy.

    Plans are made from the documents' lengths; no text is read. Values are plain, and but for
    `rows` count slots (= tokens): `real` ones hold a token of the text.
    """
    found = []
    for name, strategy in STRATEGIES.items():
        plans = [pack(docs, seq_len=seq_len, strategy=name).plan for docs in sources]
        counts = ((p.rows, p.slots, p.padding, p.dropped_tokens) for p in plans)
        rows, slots, padding, dropped = map(sum, zip((0, 0, 0, 0), *counts, strict=True))
        cost = {
            "strategy": name,
            "rows": rows,
            "slots": slots,
            "padding": padding,
            "dropped": dropped,
            "real": slots - padding,
            "padding_share": padding / max(slots, 1),
            "description": strategy.description,
        }
        found.append(cost)
    return found


def packing_table(costs: Sequence[Mapping[str, Any]], *, seq_len: int) -> Table:
    """The comparison as a table for a terminal."""
    shown = table(
        f"One epoch at seq_len {seq_len:,}",
        ["strategy"],
        ["rows", "real tokens", "padding", "padding %", "dropped"],
        (
            [each[name] for name in ("strategy", "rows", "real", "padding")]
            + [f"{100 * each['padding_share']:.2f}", each["dropped"]]
            for each in costs
        ),
    )
    shown.caption = "\n".join(f"{each['strategy']}: {each['description']}" for each in costs)
    return shown


class _Lengths:
    """Some documents of which only the lengths are known: enough to plan.

    Nothing is read, and plans that no run asked for are not kept beside the data.
    """

    def __init__(self, documents: Documents, share: float) -> None:
        count = max(1, round(len(documents) * share))
        random = np.random.default_rng(derive(0, "report", documents.name))
        chosen = np.sort(random.choice(len(documents), count, replace=False))
        self.lengths = np.asarray(documents.lengths)[chosen]
        self.name = documents.name
        self.fingerprint = f"{documents.fingerprint}, {count} of {len(documents)}"

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray[Any]:
        return np.zeros(int(self.lengths[index]), np.uint32)


def sampled(sources: Sequence[Documents]) -> list[Any]:
    """The lengths of documents, of many a sample, as what can be packed."""
    share = min(1.0, MOST_PLANNED / max(sum(map(len, sources)), 1))
    return [_Lengths(each, share) for each in sources if len(each)]
