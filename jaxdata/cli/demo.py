"""`jaxdata demo`: everything end to end, on text found on this machine."""

from jaxdata.base.settings import setting
from jaxdata.cli.options import command


@command()
def demo(
    output: str = setting(
        "jaxdata-demo", "Folder for all files; a folder of an earlier demo is emptied."
    ),
    quick: bool = setting(False, "Use less text and fewer steps: half a minute."),
) -> None:
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
