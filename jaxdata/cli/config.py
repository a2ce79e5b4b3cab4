"""`jaxdata config`: every field of a config, what it means and where it was set."""

from __future__ import annotations

import json

import click

from jaxdata.cli.arguments.run_config import OVERRIDABLE, may_take_config

_EPILOG = """\b
Examples:
  jaxdata config                              all fields and their defaults
  jaxdata config pretrain --seed 1            a config, and where it says what
  jaxdata config pretrain > mine.yaml         a config of your own, with all fields
  jaxdata config --schema > schema.json       for editors; a YAML file names it in its first line:
                                              # yaml-language-server: $schema=schema.json
"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@may_take_config
@click.option("--schema", is_flag=True, help="Print a JSON Schema of all fields.")
def config(config: str | None, schema: bool, overrides: tuple[str, ...]) -> None:
    """Print every field of a config: what it means, its value, its default and where it was set.

    What is printed is a config itself. Without CONFIG, fields have their defaults.
    """
    if schema:
        from jaxdata.config.annotated import config_schema

        click.echo(json.dumps(config_schema(), indent=1))
        return
    click.echo(_annotated(config, overrides), nl=False)


def _annotated(name: str | None, overrides: tuple[str, ...]) -> str:
    from jaxdata.config import parse_overrides
    from jaxdata.config.annotated import annotated, defaults
    from jaxdata.config.config_reader import read_config_values
    from jaxdata.look.terminal import printable_lines

    given = parse_overrides(overrides)
    if name is None and not given:
        return defaults()
    return printable_lines(annotated(*read_config_values({} if name is None else name, given)))
