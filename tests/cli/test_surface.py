"""The commands there are: few, each explained on one screen, and a way in for all that was."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import click
import pytest

import jaxdata
from jaxdata.cli import COMMANDS, SYNONYMS, cli
from jaxdata.train.log import RunLog
from tests import builders
from tests.commands import run
from tests.converter.here import convert_here

LINES, COLUMNS = 45, 80


@pytest.mark.parametrize("name", [*COMMANDS])
def test_help_fits_a_screen(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command
    with click.Context(command, info_name=f"jaxdata {name}", terminal_width=COLUMNS) as context:
        lines = command.get_help(context).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert len(lines) <= LINES


def test_help_lists_few_commands_and_no_synonym() -> None:
    listed = re.findall(r"^  ([a-z]+)  +\S", run("--help").stdout, re.MULTILINE)
    assert listed == [*COMMANDS]
    assert len(listed) <= 13
    assert not {*SYNONYMS} & {*listed}
    assert all(new.split()[0] in COMMANDS or new[:2] == "--" for new in SYNONYMS.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset `d` with a view, a config `c.yaml` and a run `r` that has begun."""
    folder = tmp_path_factory.mktemp("surface")
    texts = [f"page {number} has its own words: {number * 7919}" for number in range(60)]
    file = folder / "pages.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    where = {"output": folder / "d", "source": "web", "tokenizer": "bytes"}
    convert_here(str(file), **where, workers=1)
    jaxdata.select(folder / "d", "good", where="document < 20")
    sections = {"pack": {"seq_len": 64}, "loader": {"batch_size": 8}}
    builders.run(folder, dataset=str(folder / "d"), **sections).rename(folder / "c.yaml")
    log = RunLog(folder / "r/log.jsonl")
    log.write({"event": "start", "step": 3, "steps": 9})
    log.close()
    return folder


WAYS_IN = [
    ("trace {c} --step 1 --row 2", "inspect {c} --step 1 --row 2", "row 2 of the batch"),
    ("trace --config {c} --document web:7", "inspect {c} --document web:7", "in slots"),
    ("trace {c} --document web:7 --json", "inspect {c} --document web:7 --json", '"row_in_batch"'),
    ("trace {c} --find 'page 9 has'", "inspect {c} --find 'page 9 has'", "has the text"),
    ("trace 'page 9 has' --config {c}", "inspect {c} --find 'page 9 has'", "has the text"),
    ("trace 'page 9 has' {d}", "inspect {d} --find 'page 9 has'", "the text in 0 to 9"),
    ("trace {c} --find page --limit 3", "inspect {c} --find page --limit 3", "57 more documents"),
    ("views {d}", "inspect {d} --views", "where document < 20"),
    ("views {d} --json", "inspect {d} --views --json", '"good"'),
    ("plan {c}", "preview {c}", "60 documents planned"),
    (
        "plan {c} --hosts 2 --batch-size 4 --cache-bytes 9",
        "preview {c} --hosts 2 --loader.batch_size 4 --storage.cache.bytes 9",
        "2 hosts, batches of 4",
    ),
    ("top {r} --once", "train --watch {r} --once", "step 3 of 9"),
    ("top --once {r}", "train {c} --train.output {r} --watch", "step 3 of 9"),
    ("selftest {c} --trainer os:none", "verify {c} --trainer os:none", "os has no"),
    (
        "materialize {c} --output {o} --record-format plain --rows 3:9 --no-shuffle",
        "export {c} --output {o} --format rows --rows 3:9 --no-shuffle",
        "6 rows, ",
    ),
    (
        "materialize {c} --output {o} --layout maxtext --record-format=tf_example --split train",
        "export {c} --output {o} --layout maxtext --format tf_example --split train",
        " rows, ",
    ),
    (
        "export {d} --output {o} --format nanogpt --documents good",
        "export {c} --output {o} --format nanogpt --documents good --source web",
        "20 documents, ",
    ),
    ("cache ls --config {c}", "cache", "limit "),
    ("cache clear --all", "cache clear {c} --all", "0 pages (0.0 MB)"),
]


@pytest.mark.parametrize(("old", "new", "says"), WAYS_IN)
def test_what_a_command_of_before_did_has_a_way_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", str(10**9))  # which a config would set for good
    places = {"c": folder / "c.yaml", "d": folder / "d", "r": folder / "r", "o": folder / "o"}
    found = []
    for line in (old, new):
        shutil.rmtree(folder / "o", ignore_errors=True)
        (folder / "o").unlink(missing_ok=True)
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)]
        status, said = ran(*(word.format(**places) for word in words))
        found.append((status, re.sub(r"[\d.]+ s\b", "TIME", said)))
    assert found[0] == found[1]
    assert says in found[0][1]
    assert found[0][0] in (0, 1)


def test_documents_are_chosen_and_views_removed_by_dedup(folder: Path) -> None:
    made, gone = [], []
    for choose, remove in (("select", "views"), ("dedup", "dedup")):
        where = ("--where", "document < 3", "--output-name", "few")
        made.append(run(choose, folder / "d", *where).stdout)
        gone.append(run(remove, folder / "d", "--remove", "few").stdout)
    assert made[0] == made[1]
    assert "kept 3 of 60 documents" in made[0]
    assert gone == ["view few of train/web is removed\n"] * 2


def ran(*words: str) -> tuple[int, str]:
    """The exit code of a command, and all that it prints."""
    try:
        done = run(*words)
        return 0, done.stdout + done.stderr
    except AssertionError:
        done = run(*words, status=1)
        return 1, done.stdout + done.stderr


def test_a_document_is_decoded_and_found_in_the_run(folder: Path) -> None:
    config = folder / "c.yaml"
    decoded = run("inspect", folder / "d", "--document", "web:7").stdout
    assert decoded == run("inspect", folder / "d", "--document", "train/web:7").stdout
    both = run("inspect", config, "--document", "train/web:7").stdout
    assert both.startswith(decoded)
    (place,) = re.findall(r"^    step (\d+), row (\d+)  tokens", both, re.MULTILINE)
    batch = run("inspect", config, "--step", place[0], "--row", place[1]).stdout
    assert "web:7  tokens 0 to " in batch
    found = json.loads(run("inspect", config, "--document", "web:7", "--json").stdout)
    assert found["parts"][0]["text"].startswith("page 7 has")
    (document,) = found["documents"]
    assert [[p["step"], p["row_in_batch"]] for p in document["pieces"]] == [[*map(int, place)]]


WRONG = [
    (
        "inspect {c} --step 1 --document web:1",
        "--step, --document, --find and --find-file exclude each other",
    ),
    ("verify {d} --steps 3", "give it as well, as in jaxdata verify --config demo --dataset {d}"),
    ("verify {d} --pack.seq_len 3", "these options are for the laws on a CONFIG"),
    ("verify {c} --json", "--json and --threads are for a DATASET, not for a CONFIG"),
    ("export {d} --output {d}/o --source web", "--source is for documents, not for --format rows"),
    ("export {d} --output {d}/o --format gpts --rows :3", "--rows is for rows, not for --format g"),
    ("train {c} --once", "--once is for --watch"),
    ("cache clear --steps 3", "--steps is not for jaxdata cache clear"),
    ("cache ls --all", "--all is not for jaxdata cache ls"),
    ("cache warm", "give the CONFIG of the run whose data is fetched"),
    ("cache wram", "'wram' is not one of 'ls', 'warm', 'verify', 'clear'"),
    ("inspect pretran --step 3", "pretran is neither a dataset nor a config; did you mean 'pretr"),
    ("verify", "give a DATASET, which is a folder or URL, or a CONFIG"),
]


@pytest.mark.parametrize(("line", "says"), WRONG)
def test_options_that_do_not_go_together_are_refused(folder: Path, line: str, says: str) -> None:
    places = {"c": folder / "c.yaml", "d": folder / "d"}
    said = run(*(word.format(**places) for word in line.split()), status=2).stderr
    assert says.format(**places) in " ".join(said.split())
