"""Output for a terminal: text made safe and measured in columns, plain tables, and JSON instead."""

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.table import Table
from rich.text import Text


def printable(text: str) -> str:
    r"""The text on one line, with every invisible character escaped.

    Control characters, escape sequences, direction marks and unassigned characters never reach
    the terminal.

    >>> print(printable("red: \x1b[31m\n\u202e"))
    red: \x1b[31m\n\u202e
    """
    return "".join(
        c if c.isprintable() or unicodedata.category(c) == "Zs" else repr(c)[1:-1] for c in text
    )


def printable_lines(text: str) -> str:
    """The text with each of its lines as :func:`printable` makes it."""
    return "\n".join(map(printable, text.split("\n")))


def excerpt(text: str) -> str:
    r"""A quotation for one line: printable, with runs of spaces collapsed.

    >>> print(excerpt("  a   table\n  of   numbers"))
    a table\n of numbers
    """
    return re.sub(" {2,}", " ", printable(text)).strip()


def fit(text: str, width: int) -> str:
    """A printable text cut to `width` columns, with an ellipsis if it is cut.

    >>> fit("abcdef", 4), fit("日本語", 5), fit("abc", 3)
    ('abc…', '日本…', 'abc')
    """
    if cell_len(text) <= width:
        return text
    return f"{chop_cells(text, width - 1)[0] if width > 1 else ''}…"


def table(
    title: str, left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[object]]
) -> Table:
    """A table: columns aligned to the left, then columns aligned to the right.

    Texts of cells are made safe; whole numbers have commas, and None is an empty cell.
    """
    made = Table(
        box=SIMPLE_HEAD,
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        padding=(0, 1),
    )
    for heading in left:
        made.add_column(Text(printable(heading)), overflow="fold", min_width=6)
    for heading in right:
        made.add_column(Text(printable(heading)), justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: object) -> Text:
    if value is None:
        return Text("")
    return Text(f"{value:,}" if isinstance(value, int) else printable_lines(str(value)))


def width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return Console().width


def show(lines: Iterable[str | Text | Table], found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print lines and tables; or what they were made of, as one JSON object.

    Lines are whole where there is no terminal; on one, those that are no `Text` break at words.
    """
    if as_json:
        print(json.dumps(found, indent=1))
        return
    console = Console()
    for each in lines:
        if isinstance(each, str):
            console.print(Text(each), soft_wrap=not console.is_terminal)
        else:
            console.print(each, soft_wrap=isinstance(each, Text))
