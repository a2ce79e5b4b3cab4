"""`jaxdata demo`: everything end to end, on text found on this machine."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--output",
    default="jaxdata-demo",
    show_default=True,
    help="Folder for all files; a folder of an earlier demo is emptied.",
)
@click.option("--quick", is_flag=True, help="Use less text and fewer steps: half a minute.")
def demo(output: str, quick: bool) -> None:
    """Run everything end to end: from raw text to an exactly resumed training run.

    Gathers text that ships with Python, trains a tokenizer, converts the text, plans the packing,
    trains a small language model, kills it, resumes it on two hosts, and proves that no row
    differs. Takes about two minutes on two cores; needs no network.
    """
    from rich.console import Console

    from jaxdata.storage import local_path
    from jaxdata.train.demo import FULL, QUICK, Demo

    folder = local_path(output, "run the demo in a folder of this machine")
    Demo(folder, QUICK if quick else FULL, Console()).run()
