"""What the README says, done as it says it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxdata.convert.cerebras_rules import RULES
from tests.chat import CHATML
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def python(what: str) -> str:
    """The block of Python in which this stands."""
    return next(block for block in blocks("python") if what in block)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text that the README converts: this project's own sources."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "my").mkdir()
    sources = sorted((ROOT / "jaxdata").rglob("*.py"))
    texts = [path.read_text() for path in sources] * 4
    write_lines(folder / "my" / "a.jsonl", texts[::2])
    write_lines(folder / "my" / "b.jsonl", texts[1::2])
    write_lines(folder / "held-out.jsonl", texts[:3])
    write_parquet(folder / "more.parquet", texts)
    (folder / "pretrain.yaml").write_text((ROOT / "configs/pretrain.yaml").read_text())
    return folder


def write_lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_parquet(path: Path, texts: list[str]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def converted(folder: Path) -> Path:
    commands = next(block for block in blocks("") if "jaxdata tokenizer train" in block)
    for line in commands.strip().splitlines():
        command = line.replace("--vocab-size 8192", "--vocab-size 1024")
        run(folder, "bash", "-c", f"{sys.executable} -m {command}")
    return folder


@pytest.mark.slow
def test_the_python_runs(converted: Path) -> None:
    ten_lines, three_lines = (python(what) for what in ("jaxdata.mix(", "data/mine/train"))
    assert len([line for line in ten_lines.splitlines() if line.strip()]) <= 13
    printed = run(converted, sys.executable, "-c", ten_lines)
    assert printed.splitlines()[-1] == "(8, 2048) (8, 2048) 40"
    three = [line for line in three_lines.strip().splitlines() if line]
    assert len(three) == 3
    code = f"{three_lines}\nimport jaxdata\n" + (
        "print(jaxdata.open_dataset('data/mine').decode(tokens[:40]))"
    )
    assert run(converted, sys.executable, "-c", code).startswith('"""')


@pytest.mark.slow
def test_the_recipe_is_amended(converted: Path) -> None:
    code = python("jaxdata.mix(") + python("mixed.amend(")
    code += "\nprint(len(later), later.amendments[0]['row'], later[40]['inputs'].shape)"
    printed = run(converted, sys.executable, "-c", code)
    assert printed.splitlines()[-1] == "44 40 (8192,)"


def test_the_curricula_are_valid(tmp_path: Path) -> None:
    from jaxdata.config import load_config

    recipe = tmp_path / "recipe.yaml"
    mine = [block for block in blocks("yaml") if "on_exhaustion" in block or "at_row" in block]
    recipe.write_text("\n".join(["dataset: d", *mine]))
    given = load_config(recipe)
    assert [len(given.curriculum or []), len(given.amendments)] == [2, 2]


@pytest.mark.slow
def test_the_yaml_trains(converted: Path) -> None:
    command = next(block for block in blocks("") if "jaxdata train" in block).strip()
    small = [
        "--train.steps=2",
        "--pack.seq_len=64",
        "--loader.batch_size=4",
        "--eval_tokens=256",
        "--train.model={layers: 1, width: 32, heads: 2}",
    ]
    arguments = [*shlex.split(command.replace("--train.steps 1000", "")), *small]
    printed = run(converted, sys.executable, "-m", *arguments)
    assert "bits per byte" in printed


@pytest.mark.slow
def test_every_task_is_converted_and_pairs_are_read(folder: Path) -> None:
    write_records(folder / "questions.jsonl", [{"question": "2+2", "answer": "4"}] * 8)
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    write_records(folder / "chats.jsonl", [{"messages": turns}] * 8)
    write_lines(folder / "code.jsonl", ["def f():\n    return 1\n"] * 8)
    choice = {"prompt": "Hi", "chosen": "Ho", "rejected": "Ha"}
    write_records(folder / "choices.jsonl", [choice] * 8)
    (folder / "chatml.jinja").write_text(CHATML)
    commands = next(block for block in blocks("") if "--task dpo" in block)
    for line in commands.strip().replace("\\\n", "").splitlines():
        fim = " --fim-prefix 1 --fim-middle 2 --fim-suffix 3" if "--task fim" in line else ""
        command = line.replace("tiktoken:cl100k_base", "bytes") + fim
        run(folder, "bash", "-c", f"{sys.executable} -m {command}")
    printed = run(folder, sys.executable, "-c", python("jaxdata.pairs("))
    assert printed.splitlines() == ["(2, 1024) (2, 1024)"] * 4


def test_every_argument_of_cerebras_is_in_the_table() -> None:
    section = README.split("### From Cerebras")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert set(RULES) <= named


@pytest.mark.slow
def test_the_dataset_is_whole(converted: Path) -> None:
    command = next(block for block in blocks("") if "jaxdata verify" in block).split()
    assert run(converted, sys.executable, "-m", *command).startswith("data/mine: whole (")


@pytest.mark.slow
def test_runs_are_foretold_and_explained(converted: Path) -> None:
    commands = next(block for block in blocks("") if "jaxdata validate" in block)
    printed = [
        run(converted, "bash", "-c", f"{sys.executable} -m {command}")
        for command in commands.strip().splitlines()
    ]
    expected = ["lengths in tokens", "none of them runs dry", "row 2 of the batch", "has the text"]
    for says, out in zip(expected, printed, strict=True):
        assert says in out


@pytest.mark.slow
def test_text_is_streamed(converted: Path) -> None:
    printed = run(converted, sys.executable, "-W", "ignore", "-c", python("stream_text"))
    assert set(printed.splitlines()) == {"(16, 512)"}


@pytest.mark.slow
def test_torch_has_the_same_rows(converted: Path) -> None:
    code = python("StatefulDataLoader").replace("rows, batch_size=8", "rows[:40], batch_size=8")
    printed = run(converted, sys.executable, "-W", "ignore", "-c", code).splitlines()
    assert printed == [f"{'(8, 1024) ' * 3}{row}" for row in (8, 16, 24, 32, 40)]


@pytest.mark.slow
def test_rows_are_written_and_read(converted: Path) -> None:
    command = next(block for block in blocks("") if "jaxdata materialize" in block).split()
    small = ["--pack.seq_len", "64"]
    run(converted, sys.executable, "-m", *command, *small)
    three = python("rows.json")
    assert len(three.split("\n\n")[1].strip().splitlines()) == 3
    code = f"{three}\nimport jaxdata\nfirst = jaxdata.open_rows('rows')[0]\n" + (
        "print(all((row[name] == first[name]).all() for name in first))"
    )
    assert run(converted, sys.executable, "-c", code) == "True\n"


@pytest.mark.slow
def test_other_tools_are_left_and_joined(converted: Path) -> None:
    command = next(block for block in blocks("") if "jaxdata export" in block).split()
    assert "tokens" in run(converted, sys.executable, "-m", *command)
    code = python("jaxdata.megatron.gpt")
    assert run(converted, sys.executable, "-c", code) == "(8, 1024) 2408\n"
    (mixed,) = (block for block in blocks("yaml") if "sources:" in block)
    (converted / "mixed.yaml").write_text(mixed)
    check = ["check", "--config", "mixed.yaml", "--steps", "4", "--pack.seq_len", "256"]
    assert "proved in" in run(converted, sys.executable, "-m", "jaxdata", *check)


def test_the_files_it_names_exist() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / name).exists(), name
    rooms = re.findall(r"`(?:jaxdata/)?(\w+)`(?= [a-z])", README.split("## Where things are")[1])
    assert {"tokenizers", "format", "convert", "rows", "feed", "train", "look"} <= set(rooms)
    for room in rooms:
        assert any((ROOT / "jaxdata").glob(f"{room}*")), room
