"""The statistics of a conversion as a table, one column per source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from jaxdata.errors import DatasetError
from jaxdata.format.manifest import Manifest, SourceEntry
from jaxdata.look.terminal import plain_table, printable


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
