"""What a conversion counted, as a table: a column a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    columns = [list(_lines(manifest.sources[name])) for name in names]
    for cells in zip(*columns, strict=True):
        table.add_row(Text(cells[0][0]), *(cell for _, cell in cells))
    return table


def _lines(entry: SourceEntry) -> Iterator[tuple[str, str]]:
    counted = entry.statistics
    files = counted["files"]
    yield "files read", f"{files['processed']:,}"
    yield "  gave documents", f"{files['successful']:,}"
    yield "  gave none", f"{files['discarded']:,}"
    yield "records read", f"{counted['records']:,}"
    yield "  set aside", f"{sum(counted['quarantined'].values()):,}"
    yield "  left out", f"{sum(counted['dropped'].values()):,}"
    yield "documents", f"{entry.documents:,}"
    for what, name in (("characters", "characters"), ("bytes", "text_bytes")):
        yield what, f"{counted[name]:,}"
        yield "  before cleaning", f"{counted[f'raw_{what}']:,}"
        yield "  a document", f"{counted[f'{what}_per_document']:,.1f}"
    yield "tokens", f"{entry.tokens:,}"
    yield "  with loss", f"{counted['loss_tokens']:,}"
    yield "  unknown", f"{counted['unknown_tokens']:,} ({counted['unknown_token_rate']:.3%})"
    yield "  a byte", f"{counted['tokens_per_byte']:.4f}"
    yield "  a document", f"{counted['tokens_per_document']:,.1f}"
    for percentile, length in counted["length_percentiles"].items():
        yield f"  {percentile.removeprefix('p')} % have at most", f"{length:,}"
    yield "  the longest has", f"{counted['longest_document']:,}"
