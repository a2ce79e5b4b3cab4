"""Options under headings in `--help`, for commands that have many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

__all__ = ["GroupedCommand", "group"]

Decorator = Callable[[Any], Any]


class GroupedCommand(click.Command):
    """A command whose help shows options by the heading that :func:`group` gave them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those without a heading first."""
        headings: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record and isinstance(parameter, click.Option):
                headings.setdefault(getattr(parameter, "heading", "Options"), []).append(record)
        for heading, records in headings.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def group(heading: str, *options: Decorator) -> Decorator:
    """Give a command some options, under a heading."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
            command.__click_params__[-1].heading = heading
        return command

    return decorate
