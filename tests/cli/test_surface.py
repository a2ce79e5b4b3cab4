"""The commands there are: few, each explained on one screen, made of what they set."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

import jaxdata
from jaxdata.base.settings import setting
from jaxdata.cli import COMMANDS, cli
from jaxdata.cli.options import Command, command, refuse
from jaxdata.converter.tasks import task_names, task_options
from tests import builders
from tests.commands import run
from tests.converter.here import convert_here, records, write_lines

LINES, COLUMNS = 45, 80


def commands() -> Iterator[tuple[str, Command]]:
    for name in COMMANDS:
        found = cli.get_command(click.Context(cli), name)
        named = found.commands if isinstance(found, click.Group) else {"": found}
        for more, each in named.items():
            assert isinstance(each, Command)
            yield f"{name} {more}".strip(), each


def test_the_list_says_what_cache_does_as_its_help_does() -> None:
    assert COMMANDS["cache"].partition(" what")[0] in run("cache", "--help").stdout


def listed(text: str) -> set[str]:
    """The options and settings that a help lists, by what is typed."""
    return {*re.findall(r"^  (?:-\w, )?(--set [a-z]\w*|--[\w-]+)", text, re.MULTILINE)}


@pytest.mark.parametrize(("name", "each"), [*commands()])
def test_help_fits_a_screen_and_help_all_lists_all(name: str, each: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    said, options = run(*name.split(), "--help").stdout, each.get_params(click.Context(each))
    assert said.count("\n") <= LINES
    assert max(map(len, said.splitlines())) <= COLUMNS
    named = [one for one in options if isinstance(one, click.Option)]
    known = {one.opts[-1].partition("=")[0]: one for one in named}
    assert all(one.help for one in known.values())
    assert len(COMMANDS) <= 13
    if not each.front:
        assert {*known} <= listed(said)
        return
    last = said.splitlines()[-1]
    assert last.endswith("--help-all")
    assert ("--task T --help" in last) == (name == "convert")
    shown = {flag for flag, one in known.items() if one.name in each.front or "help" in flag}
    assert {*each.front} <= {one.name for one in known.values()}
    assert listed(said) == shown
    assert listed(run(*name.split(), "--help-all").stdout) == {*known}


@pytest.mark.parametrize("task", task_names())
def test_the_help_of_a_task_has_its_options_and_none_of_others(task: str) -> None:
    found = listed(run("convert", "--task", task, "--help").stdout)
    typed = {each.rpartition(" ")[2].strip("-").replace("-", "_") for each in found}
    assert typed & {*task_options()} == {*task_options(task)} - {"bos"}
    assert found == listed(run("convert", "--help", "--task", task).stdout)


def test_a_command_is_made_of_the_arguments_of_its_function() -> None:
    @command(front=["b"], also=["c", "d"], headings=["Last", "First"])
    def some(
        words: tuple[str, ...],
        a: int | None = setting(None, "One.", ge=1, heading="First"),
        b: list[str] | None = setting(None, "Two."),
        c: bool = setting(True, "Three."),
        d: tuple[str, ...] = setting((), "Four.", flag="-d --data"),
        e: str | int = setting("x", "Five.", heading="Last"),
    ) -> None:
        refuse(["e"], "no {} here")
        click.echo([words, a, b, c, d, e])

    typed = CliRunner()
    assert listed(typed.invoke(some, ["--help"]).stdout) == {"--b", "--help", "--set", "--help-all"}
    lines = typed.invoke(some, ["--help-all"]).stdout.splitlines()
    headings = [line for line in lines if line.endswith(":")]
    assert headings == ["Options:", "Last:", "First:", "More options:"]
    given = ["x", "y", "--set", "a=1", "--set=a=3", "--b", "p, q", "--no-c", "-d", "1", "--data=2"]
    said = typed.invoke(some, given).stdout
    assert said == "[('x', 'y'), 3, ['p', 'q'], False, ('1', '2'), 'x']\n"
    for wrong, says in (
        ([], "WORD..."),
        (["x", "--set", "a=0"], "Invalid value for '--set a=': 0 is not in the range x>=1"),
        (["x", "--set", "e=7"], "no --set e= here"),
        (["x", "--set", "aa=7"], "there is no setting 'aa'; did you mean 'a'?"),
        (["x", "--set", "data=7"], "there is no setting 'data'; did you mean '--data'?"),
        (["x", "--set", "xyzzy=7"], "there is no setting 'xyzzy': see --help-all"),
        (["x", "--set", "a"], "'a': expected NAME=VALUE"),
        (["x", "--a", "7"], "--a is a setting: give it as --set a=VALUE"),
        (["x", "--xyzzy", "7"], "No such option '--xyzzy'"),
    ):
        assert says in typed.invoke(some, wrong).output


@pytest.fixture(scope="module")
def folder(module_path: Path) -> Path:
    """A dataset `d` with a view, and a config `c.yaml`."""
    folder = module_path
    texts = [f"page {number} has its own words: {number * 7919}" for number in range(60)]
    file = write_lines(folder / "pages.jsonl", records(*texts))
    convert_here(str(file), output=folder / "d", source="web", tokenizer="bytes", workers=1)
    jaxdata.select(folder / "d", "good", where="document < 20")
    sections = {"pack": {"seq_len": 64}, "loader": {"batch_size": 8}}
    builders.run(folder, dataset=str(folder / "d"), **sections).rename(folder / "c.yaml")
    return folder


SAME = [
    ("trace --config {c} --document web:7", "inspect {c} --document web:7", "in slots"),
    ("trace 'page 9 has' --config {c}", "inspect {c} --find 'page 9 has'", "has the text"),
    ("trace {d} 'page 9 has'", "inspect {d} --find 'page 9 has'", "the text in 0 to 9"),
    ("inspect {d} --views", "inspect {d} --views", "where document < 20"),
    ("plan {c}", "preview {c}", "60 documents planned"),
    ("preview --config {c} --pack.seq_len 4", "preview --pack.seq_len 4 {c}", "rows"),
    ("selftest {c} --trainer os:none", "verify {c} --trainer os:none", "os.py has no"),
    ("export {d} {good}", "export {c} {good} --source web", "20 documents, "),
    ("{rows} --no-shuffle", "{rows} --no-shuffle --format rows", "6 rows, "),
    ("{rows} {skipping}", "{rows} {skipping} --format rows", "4 rows, "),
    ("cache ls --config {c}", "cache", "limit "),
]


@pytest.mark.parametrize(("one", "other", "says"), SAME)
def test_what_people_type_means_the_same(
    folder: Path, monkeypatch: Any, one: str, other: str, says: str
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(10**9))  # which a config would set for good
    places = {"c": folder / "c.yaml", "d": folder / "d"}
    places["skipping"] = "--loader.skip_rows [[4,6]]"
    places["good"] = f"--output {folder}/o --format nanogpt --documents good"
    places["rows"] = f"export {folder}/c.yaml --output {folder}/o --rows 3:9"
    found = []
    for line in (one, other):
        shutil.rmtree(folder / "o", ignore_errors=True)
        (folder / "o").unlink(missing_ok=True)
        words = re.findall(r"'[^']*'|\S+", line.format(**places))
        done = run(*(word.strip("'") for word in words), status=int("os:none" in line))
        found.append(re.sub(r"[\d.]+ s\b", "TIME", done.stdout + done.stderr))
    assert found[0] == found[1]
    assert says in found[0]


WRONG = [
    ("train demo --datset x", 2, "No such option '--datset'. Did you mean '--da"),
    ("preview demo --xyzzy", 2, "No such option '--xyzzy'."),
    ("verify demo --xyzzy.seq_len 4", 2, "No such option '--xyzzy'."),
    ("inspect x --rwo 3", 2, "Did you mean '--row'?"),
    ("trian demo", 2, "there is no command 'trian'; did you mean 'train'?"),
    ("trce demo", 2, "there is no command 'trce'; did you mean 'trace'?"),
    ("train --seed 3", 2, "give CONFIG: a YAML file, or the name of a config shipped"),
    ("preview {d}", 1, "d is a dataset, not a config: give a config, and --dataset {d}"),
    ("inspect pretran --step 3", 2, "pretran is neither a dataset nor a config; did you mean 'p"),
    ("verify", 2, "give a DATASET, which is a folder or URL, or a CONFIG"),
    ("inspect {c} --step 1 --document web:1", 2, "--document and --find exclude each other"),
    ("verify {d} --steps 3", 2, "--steps is for the laws on a CONFIG: give it as well, as in jaxd"),
    ("verify {d} --pack.seq_len 3", 2, "--pack.seq_len is for the laws on a CONFIG"),
    ("verify {c} --json", 2, "--json is for a DATASET, not for a CONFIG"),
    ("export {d} --output {d}/o --source web", 2, "--source is for documents, not for --format r"),
    ("export {d} --output {d}/o --format gpts --rows :3", 2, "--rows is for rows, not for --for"),
    ("export {d} --output {d}/o --rows 3", 2, "'3': expected rows like 0:1000, :1000 or 1000:"),
    ("train {c} --process-id 1", 2, "--process-id require each other: give all three"),
    ("cache clear --json", 2, "--json is not for jaxdata cache clear"),
    ("dedup {d} --remove good --near", 2, "--remove removes a view, and takes no --near: leave it"),
    ("cache lss", 2, "'lss' is not one of 'ls', 'verify', 'clear'"),
    ("convert {p}x {to}", 1, "error: {p}x: no such file or folder"),
    ("convert {p} {to} --tokenizer word", 1, "unknown tokenizer 'word'; expected sentencepiece:FI"),
    ("convert {p} {to} --text-key body", 1, "which has 'text'. Are these the files?"),
    ("convert {p} {to} --set bos_token=3000", 1, "bos=3000 is not a token of 'bytes'"),
    ("convert {p} {to} --source", 2, "Option '--source' requires an argument"),
]


@pytest.mark.parametrize(("line", "status", "says"), WRONG)
def test_what_is_typed_wrongly_is_named(folder: Path, line: str, status: int, says: str) -> None:
    places = {"c": folder / "c.yaml", "d": folder / "d", "p": folder / "pages.jsonl"}
    places["to"] = f"--output {folder}/new --source web --tokenizer bytes"
    said = run(*line.format(**places).split(), status=status).stderr
    assert says.format(**places) in " ".join(said.split())
    assert status == 2 or said.count("\n") == 1


def test_verify_ends_with_1_where_a_promise_does_not_hold(folder: Path, monkeypatch: Any) -> None:
    broken = SimpleNamespace(holds=False, name="plan", says="a target is lost")
    monkeypatch.setattr("jaxdata.testing.prove", lambda *_, **__: [broken])
    said = run("verify", folder / "c.yaml", status=1).stdout
    assert "FAILED  plan      a target is lost\n" in said
    assert "1 of the promises do not hold" in said
