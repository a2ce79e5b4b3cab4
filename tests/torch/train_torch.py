"""`jaxdata train` in torch: `python -m tests.torch.train_torch CONFIG [--device cuda] [--field …]`.

The same rows, first weights and steps on one device, on a GPU where torch finds one. It prints the
first loss beside that of JAX and how long it waited for data.
"""

from __future__ import annotations

import os

os.environ["JAX_PLATFORMS"] = "cpu"  # it only makes the weights; a GPU is torch's

import click

from jaxdata.base.errors import JaxdataError
from jaxdata.config import load_config, parse_overrides
from tests.torch.twin import Twin


@click.command(context_settings={"ignore_unknown_options": True}, help=__doc__)
@click.argument("config")
@click.option("--device", help="where to train, like cuda:1 or cpu")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def main(config: str, device: str | None, overrides: tuple[str, ...]) -> None:
    try:
        Twin(load_config(config, parse_overrides(overrides)), device, click.echo).run()
    except JaxdataError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
