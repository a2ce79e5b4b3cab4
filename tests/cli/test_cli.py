"""The command line: what it prints, and how it exits."""

from __future__ import annotations

import gzip
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxdata import cli
from jaxdata.errors import InputError
from jaxdata.testing import distinct_documents, write_dataset
from tests.commands import apart, run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    file = tmp_path / "pages.jsonl"
    texts = [f"page {i}: some words, {i * 7919} and größe\n" for i in range(400)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def test_help_is_quick_and_lists_every_command() -> None:
    script = (
        "import sys; from jaxdata.cli import cli; cli.main(['--help'], standalone_mode=False); "
        "print(sorted({'numpy', 'jax', 'grain', 'rich', 'pydantic', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    for name in cli.COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_where_the_table_says_and_has_an_example(name: str) -> None:
    help_text = run(name, "--help").stdout
    assert help_text.startswith(f"Usage: jaxdata {name}")


@pytest.mark.exhaustive



def test_help_ends_with_an_example(arguments: list[str]) -> None:
    help_text = run(*arguments, "--help").stdout
    assert "Example" in help_text
    assert f"jaxdata {' '.join(arguments)} " in help_text[help_text.index("Example") :]


def test_version() -> None:
    assert "jaxdata" in apart("--version").stdout


def test_train_a_tokenizer_convert_and_read_back(pages: Path, tmp_path: Path) -> None:
    model, output = tmp_path / "my model/t.model", tmp_path / "data"
    trained = apart(
        *("tokenizer", "train", pages, "--output", model, "--vocab-size", "400", "--digits", "2")
    )
    assert f"wrote {model}: 400 tokens" in trained.stdout
    assert trained.stderr == "training a bpe vocabulary of 400 tokens ...\n"
    spec = f"sentencepiece:{model}"
    asked = ["convert", pages, "--output", output, "--source", "web", "--tokenizer", spec]
    done = apart(*asked, "--workers", "1")
    assert done.stderr == ""
    read, wrote, took, then = done.stdout.splitlines()
    assert read.startswith("read 400 documents, 16.")
    assert read.endswith(" kB of text, from 1 file")
    size = (output / "train/web/00000-00000.array_record").stat().st_size
    assert wrote.endswith(f" per byte), 1 shard, {size / 1_000:,.1f} kB, in {output}")
    assert took.startswith("took ")
    assert then.startswith("next: jaxdata inspect ")
    shown = apart(*shlex.split(then)[2:]).stdout
    assert shown.splitlines()[1] == "page 0: some words, 0 and größe"
    assert "longest document" in apart(*asked, "--stats").stdout
    assert "already complete: nothing to do" in apart(*asked).stdout


def script(name: str, *arguments: str | Path) -> str:
    """What a script of `tools/` prints in a checkout, where no jaxdata is installed."""
    packages = [path for path in sys.path if path and not Path(path, "pyproject.toml").exists()]
    done = subprocess.run(
        [sys.executable, "-S", ROOT / "tools" / name, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_is_the_command(pages: Path, tmp_path: Path) -> None:
    options = ["--output", tmp_path / "b", "--source", "web", "--tokenizer", "bytes"]
    run("convert", pages, *options[:1], tmp_path / "a", *options[2:])
    assert script("convert.py", pages, *options).startswith("read 400 documents, ")
    assert (tmp_path / "a/dataset.json").read_bytes() == (tmp_path / "b/dataset.json").read_bytes()


def test_the_trainer_is_a_script_too() -> None:
    assert script("train.py", "--help").startswith("Usage: jaxdata train ")


def test_quarantined_lines_are_reported_and_exit_0(pages: Path, tmp_path: Path) -> None:
    with pages.open("a") as file:
        file.write('{\n{"text": null}\n[]\n')
    options = ["--output", tmp_path / "out", "--source", "web", "--tokenizer", "bytes"]
    report = run("convert", pages, *options).stdout
    said, where = report.splitlines()[0].split("; quarantined 3 records ")[1].rsplit(", in ", 1)
    assert where == f"{tmp_path}/out/train/web/quarantine.jsonl"
    assert "1 not JSON" in said
    failed = run(
        "convert", pages, *options[:3], "other", *options[4:], "--on-error", "fail", status=1
    )
    assert failed.stderr == (
        f"error: {pages}:401: not JSON. Fix the record, or skip such records with "
        "--on-error quarantine\n"
    )


def test_what_a_user_does_wrong_is_one_line(pages: Path, tmp_path: Path) -> None:
    options = ["--output", tmp_path / "out", "--source", "web", "--tokenizer", "bytes"]
    missing = apart("convert", tmp_path / "none", *options, status=1)
    assert missing.stderr.startswith(f"error: {tmp_path}/none: no such file or folder")
    unknown = run("convert", pages, *options[:-1], "gpt2", status=1)
    assert unknown.stderr.startswith("error: unknown tokenizer 'gpt2'; write tiktoken:gpt2, or ")
    key = run("convert", pages, *options, "--text-key", "body", status=1)
    assert "no record has the key 'body'" in key.stderr
    assert "has 'text': name one of these with --text-key" in key.stderr
    bos = run("convert", pages, *options, "--bos-token", "3000", status=1)
    assert "bos=3000 is not a token of 'bytes'" in bos.stderr
    model = run(
        "tokenizer", "train", pages, "--output", tmp_path / "m", "--text-key", "x", status=1
    )
    assert "error: there is no text to train a tokenizer on" in model.stderr
    blocked = run("convert", pages, "--output", pages, *options[2:], status=1)
    assert blocked.stderr.startswith("error: ")
    assert "Missing option '--source'" in run("convert", pages, *options[:2], status=2).stderr
    assert "No such command 'converd'" in apart("converd", status=2).stderr


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_too_much(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 8.00 TiB")

    monkeypatch.setattr(cli.cli, "main", needs_too_much)
    assert run("x", status=1).stderr == "error: not enough memory: Unable to allocate 8.00 TiB\n"


def test_a_bar_is_drawn_on_a_terminal(pages: Path, tmp_path: Path) -> None:
    parent, child = pty.openpty()
    options = ["--output", tmp_path / "out", "--source", "web", "--tokenizer", "bytes"]
    command = [sys.executable, "-m", "jaxdata", "convert", pages, *options]
    process = subprocess.Popen(command, stderr=child, stdout=subprocess.PIPE)
    os.close(child)
    drawn = b""
    while True:
        try:
            drawn += os.read(parent, 65_536)
        except OSError:  # the other end is closed
            break
    os.close(parent)
    assert process.communicate()[0].startswith(b"read 400 documents, ")
    assert process.returncode == 0
    assert b"converting" in drawn


def test_errors_of_a_command_become_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exits(error: BaseException | None) -> tuple[int, str]:
        def command(*_: object, **__: object) -> None:
            if error is not None:
                raise error

        monkeypatch.setattr(cli.cli, "main", command)
        with pytest.raises(SystemExit) as caught:
            cli.main([])
        return int(caught.value.code or 0), capsys.readouterr().err

    assert exits(None) == (0, "")
    assert exits(InputError("what to do")) == (1, "error: what to do\n")
    assert exits(PermissionError(13, "Permission denied", "x"))[0] == 1
    assert exits(KeyboardInterrupt()) == (130, "interrupted.\n")
    with pytest.raises(ZeroDivisionError):
        exits(ZeroDivisionError())


class _Cleared:
    """Is interrupted where Python loses errors."""

    def __del__(self) -> None:
        raise KeyboardInterrupt


def test_a_ctrl_c_that_python_loses_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", cli._unraisable)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _wait_after(_Cleared)
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_after(make: Callable[[], object]) -> None:
    make()
    threading.Event().wait()


def test_a_gz_stream_and_several_options_work_together(pages: Path, tmp_path: Path) -> None:
    packed = tmp_path / "pages.jsonl.gz"
    packed.write_bytes(gzip.compress(pages.read_bytes()))
    options = ["--source", "web", "--split", "val", "--tokenizer", "bytes", "--record-tokens", "8"]
    done = run(
        "convert", packed, "--output", tmp_path / "out", *options, "--bos", "--bos-token", "7"
    )
    assert done.stdout.splitlines()[1].startswith("wrote val/web: 17,345 tokens ")
    entry = json.loads((tmp_path / "out/dataset.json").read_bytes())
    assert (entry["record_tokens"], entry["tokenizer"]["bos_id"]) == (8, 7)
