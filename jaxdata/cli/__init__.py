"""The `jaxdata` command.

A command lives in a file of its own and is imported when it is asked for, so that
`jaxdata --help` is quick. To add one, add a line to `COMMANDS`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from jaxdata.errors import JaxdataError

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("jaxdata.cli.demo:demo", "Watch everything once, on text of this machine."),
    "convert": ("jaxdata.cli.convert:convert", "Make a dataset from raw text files."),
    "tokenizer": ("jaxdata.cli.tokenizer:tokenizer", "Train a tokenizer on raw text files."),
    "plan": ("jaxdata.cli.plan:plan", "Plan a run once, for all its hosts."),
    "materialize": (
        "jaxdata.cli.materialize:materialize",
        "Write the rows of a run down, for others to read.",
    ),
    "inspect": ("jaxdata.cli.inspect:inspect", "Show a dataset, a document, a row of a run."),
    "export": (
        "jaxdata.cli.export:export",
        "Write documents as another tool's files.",
    ),
    "validate": ("jaxdata.cli.validate:validate", "Say what a run will get, to the token."),
    "trace": ("jaxdata.cli.trace:trace", "Say which documents are in a batch, or when one is."),
    "check": ("jaxdata.cli.check:check", "Prove on your data what jaxdata promises."),
    "verify": ("jaxdata.cli.verify:verify", "Compare a dataset with its checksums."),
    "train": ("jaxdata.cli.train:train", "Train a small language model on a dataset."),
}
"""Name of a command -> where it is, and its line in `jaxdata --help`."""


class _LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.command(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Each command explains itself: jaxdata COMMAND --help",
)
@click.version_option(package_name="jaxdata")
def cli() -> None:
    """Raw text to training batches for language models.

    Convert text to a dataset once; after that, row i of training is a pure function of the
    dataset, the config and i.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 an error, 2 wrong usage, 130 interrupted.

    A training run that halted where a source ran dry exits with 3.

    Whatever a user can do wrong ends as one line on stderr, not as a traceback.
    """
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = cli.main(arguments, prog_name="jaxdata", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        click.echo(f"interrupted. {error}".rstrip(), err=True)
        return 130
    except (JaxdataError, OSError) as error:
        click.echo(f"error: {error}", err=True)
        return 1
    return result if isinstance(result, int) else 0
