"""Help that fits a screen, and settings that it leaves to `--help-all`."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from jaxdata.cli import COMMANDS, cli
from jaxdata.cli.options import Command, Setting
from jaxdata.converter.tasks.registry import task_names, task_options
from tests.commands import run

LINES = 45


def commands() -> Iterator[tuple[str, Command]]:
    context = click.Context(cli)
    for name in COMMANDS:
        found = cli.get_command(context, name)
        inner = found.commands if isinstance(found, click.Group) else {"": found}
        for more, command in inner.items():
            if isinstance(command, Command):
                yield f"{name} {more}".strip(), command


NAMES = [name for name, _ in commands()]


def options(command: Command) -> list[click.Option]:
    found = command.get_params(click.Context(command))
    return [one for one in found if isinstance(one, click.Option)]


def listed(text: str) -> set[str]:
    """The options that a help lists, by what is typed."""
    lines = [line.split() for line in text.splitlines() if line.startswith("  -")]
    return {
        word.strip(",").partition("/")[0] for line in lines for word in line[:2] if "--" in word
    }


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_a_screen_and_names_where_the_rest_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = run(*name.split(), "--help").stdout
    assert said.count("\n") <= LINES
    assert max(map(len, said.splitlines())) <= 80
    last = said.splitlines()[-1]
    assert last.endswith("--help-all")
    assert ("--task T --help" in last) == (name == "convert")


@pytest.mark.parametrize(("name", "command"), [*commands()])
def test_every_option_is_listed_once_by_help_all(name: str, command: Command) -> None:
    known = [one.opts[-1] if one.opts[-1] != "-o" else one.opts[0] for one in options(command)]
    assert sorted(listed(run(*name.split(), "--help-all").stdout)) == sorted(known)
    assert {*command.front} <= {one.name for one in options(command)}
    assert listed(run(*name.split(), "--help").stdout) == {
        each
        for one, each in zip(options(command), known, strict=True)
        if one.name in command.front or "--help" in each
    }


@pytest.mark.parametrize("task", task_names())
def test_the_help_of_a_task_has_its_options_and_none_of_others(task: str) -> None:
    found = listed(run("convert", "--task", task, "--help").stdout)
    own = {f"--{name.replace('_', '-')}" for name in task_options(task)} - {"--bos"}
    every = {f"--{name.replace('_', '-')}" for name in task_options()}
    assert found & every == own
    assert found == listed(run("convert", "--help", "--task", task).stdout)


def test_what_help_leaves_out_is_typed_as_the_rest() -> None:
    @click.command(cls=Command, front=["b"], headings=["Last", "First"])
    @click.option("--a", cls=Setting, heading="First", help="One.")
    @click.option("--b", help="Two.")
    @click.option("--c", help="Three.")
    def some(**given: str) -> None:
        click.echo(given)

    typed = CliRunner()
    assert listed(typed.invoke(some, ["--help"]).stdout) == {"--b", "--help", "--help-all"}
    lines = typed.invoke(some, ["--help-all"]).stdout.splitlines()
    assert [line for line in lines if line.endswith(":")] == ["Options:", "First:", "More options:"]
    assert typed.invoke(some, ["--a", "1", "--c=3"]).stdout == "{'a': '1', 'c': '3', 'b': None}\n"
