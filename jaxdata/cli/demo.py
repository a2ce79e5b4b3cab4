"""`jaxdata demo`: everything once, on text of this machine."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["demo"]


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("jaxdata-demo"),
    show_default=True,
    help="folder for all it makes; one of an earlier demo is emptied",
)
@click.option("--quick", is_flag=True, help="less text and fewer steps: half a minute")
def demo(output: Path, quick: bool) -> None:
    """Watch the whole way from raw text to an exactly resumed training run.

    Gathers text found with Python, trains a tokenizer, converts, plans the packing, trains a
    small language model, kills it, resumes it on two hosts, and proves that no row differs.
    About two minutes on two cores; needs no network.
    """
    from rich.console import Console

    from jaxdata.demo.walk import FULL, QUICK, Demo

    Demo(output, QUICK if quick else FULL, Console()).run()
