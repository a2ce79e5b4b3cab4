"""What the demo says: its closing table, and what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

__all__ = ["NEXT", "summary_table"]

NEXT = textwrap.dedent(
    """\
    The same with your own text (.jsonl, .jsonl.gz, .txt or .parquet):

      jaxdata tokenizer train my.jsonl --vocab-size 8192 --output my.model
      jaxdata convert my.jsonl --output data/mine --source mine --tokenizer sentencepiece:my.model
      jaxdata train pretrain --dataset data/mine
    """
)


def summary_table(lines: Sequence[tuple[str, str, float]]) -> Table:
    """What happened, stage by stage: name, result, seconds."""
    table = Table(title="What happened", title_justify="left", show_footer=True, box=SIMPLE_HEAD)
    table.add_column("stage", footer="in all")
    table.add_column("result")
    seconds = sum(line[2] for line in lines)
    table.add_column("seconds", justify="right", footer=f"{seconds:.1f}")
    for name, result, taken in lines:
        table.add_row(name, result, f"{taken:.1f}")
    return table
