"""The `jaxdata` command.

Each command has a file of its own, imported when the command is used, so that `jaxdata --help` is
quick. To add one, add a line to `COMMANDS`. `options` makes options of fields of settings; `config`
gives a command CONFIG and overrides.
"""

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from types import CodeType
from typing import Any

import click

from jaxdata.base.errors import JaxdataError, nearest

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS = {
    "demo": "Run everything end to end on text found on this machine.",
    "convert": "Convert raw text files to a dataset.",
    "tokenizer": "Train a tokenizer on raw text files.",
    "dedup": "Leave out copies, or choose documents: views.",
    "delete": "Overwrite documents: no byte of them is left.",
    "inspect": "Show a dataset, a document, a batch or a row.",
    "preview": "Plan a run; show what it gets and costs to read.",
    "train": "Train a small language model.",
    "report": "Write one page about a dataset or a run.",
    "export": "Export packed rows, or documents, for other tools.",
    "verify": "Verify files of a dataset, or the laws on a run.",
    "cache": "Show, check or clear what is kept of buckets.",
    "config": "Show every field of a config and where it was set.",
}
"""Commands, and their lines in `jaxdata --help`."""
_FILES = {"report": "report_page", "cache": "host_cache"}
"""where a command is whose file does not have its name"""

SYNONYMS = {"trace": "inspect", "plan": "preview", "selftest": "verify"}
"""Words that people type and that no command has -> what they mean."""


class _LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__name__}.{_FILES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word, *others = args
        if word not in COMMANDS and word not in SYNONYMS and not word.startswith("-"):
            meant = nearest(word, [*COMMANDS, *SYNONYMS])
            raise click.UsageError(f"there is no command {word!r}{meant}", ctx)
        return super().resolve_command(ctx, [SYNONYMS.get(word, word), *others])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])


@click.command(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Help for one command: jaxdata COMMAND --help",
)
@click.version_option(package_name="jaxdata")
def cli() -> None:
    """From raw text to packed, mixed training batches for language models.

    Convert text to a dataset once; after that, row i of training is a pure function of the
    dataset, the config and i.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 error, 2 wrong usage, 3 halted, 130 interrupted.

    3 is a training run that halted where a source ran dry. A user's mistake ends as one line on
    stderr, without a traceback.
    """
    sys.unraisablehook = _unraisable
    sys.exit(_run(arguments))


def _unraisable(lost: Any) -> None:
    """Send a Ctrl-C again that came while Python cleared something away, where errors are lost."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Thread(target=_interrupt_again, daemon=True).start()
    else:
        sys.__unraisablehook__(lost)


def _interrupt_again() -> None:
    """Send a Ctrl-C once the main thread has left `_unraisable`, where it would be lost as well."""
    while _is_in(_unraisable.__code__):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def _is_in(code: CodeType) -> bool:
    """Whether the main thread is within a call of some code."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _run(arguments: Sequence[str] | None) -> int:
    typed = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["jaxdata", *typed])  # the history of a dataset says it
    try:
        result = cli.main(arguments, prog_name="jaxdata", standalone_mode=False, obj=command)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        click.echo(f"interrupted. {error}".rstrip(), err=True)
        return 130
    except (JaxdataError, OSError, MemoryError) as error:
        from jaxdata.look.terminal import printable_lines

        what = "not enough memory: " * isinstance(error, MemoryError)
        click.echo(f"error: {what}{printable_lines(str(error))}", err=True)
        return 1
    return result if isinstance(result, int) else 0
