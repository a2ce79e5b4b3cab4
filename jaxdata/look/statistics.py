"""What a conversion counted, as a table: a column a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from jaxdata.format.manifest import Manifest, SourceEntry
from jaxdata.look.safe import printable
from jaxdata.look.tables import plain_table

__all__ = ["statistics_table"]


def statistics_table(manifest: Manifest, names: Sequence[str]) -> Table:
    """Lay out the statistics of sources (`"<split>/<source>"`) side by side."""
    tokenizer = manifest.tokenizer
    ids = {"EOD": tokenizer.eod_id, "BOS": tokenizer.bos_id, "padding": tokenizer.pad_id}
    known = ", ".join(f"{role} {number}" for role, number in ids.items() if number is not None)
    table = plain_table("", ["counted"], [printable(name) for name in names])
    table.title = None
    table.caption = f"ids: {known}; vocabulary of {tokenizer.vocab_size:,}"
    table.caption_justify = "left"
    columns = [dict(_lines(manifest.sources[name])) for name in names]
    for heading in columns[0]:
        table.add_row(Text(heading), *(column.get(heading, "") for column in columns))
    return table


def _lines(entry: SourceEntry) -> Iterator[tuple[str, str]]:
    counted = entry.statistics
    files = counted["files"]
    yield "files read", f"{files['processed']:,}"
    yield "  that gave documents", f"{files['successful']:,}"
    yield "  that gave none", f"{files['discarded']:,}"
    yield "records read", f"{counted['records']:,}"
    yield "  set aside", f"{sum(counted['quarantined'].values()):,}"
    yield "  left out", f"{sum(counted['dropped'].values()):,}"
    yield "documents", f"{entry.documents:,}"
    yield from _texts(counted)
    yield from _tokens(entry, counted)


def _texts(counted: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "characters", f"{counted['characters']:,}"
    yield "  before cleaning", f"{counted['raw_characters']:,}"
    yield "  a document", f"{counted['characters_per_document']:,.1f}"
    yield "bytes", f"{counted['text_bytes']:,}"
    yield "  bytes before cleaning", f"{counted['raw_bytes']:,}"
    yield "  bytes a document", f"{counted['bytes_per_document']:,.1f}"


def _tokens(entry: SourceEntry, counted: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "tokens", f"{entry.tokens:,}"
    yield "  with loss", f"{counted['loss_tokens']:,}"
    yield "  unknown", f"{counted['unknown_tokens']:,}"
    yield "  a byte", f"{counted['tokens_per_byte']:.4f}"
    yield "  tokens a document", f"{counted['tokens_per_document']:,.1f}"
    for percentile, length in counted["length_percentiles"].items():
        yield f"  {percentile} % have up to", f"{length:,}"
    yield "  longest", f"{counted['longest_document']:,}"
