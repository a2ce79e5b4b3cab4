"""The command line: what it prints, and how it exits."""

import io
import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata import cli
from jaxdata.base.errors import InputError
from jaxdata.base.progress import progress_bar, say, status_line
from jaxdata.storage.pages.page_cache import PageCache, Wanted, close_caches, place_of
from tests.commands import apart, python, run
from tests.conftest import ROOT
from tests.converter.here import records, write_lines


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    texts = [f"page {i}: some words, {i * 7919} and größe\n" for i in range(400)]
    return write_lines(tmp_path / "pages.jsonl", records(*texts))


def test_help_is_quick_and_lists_every_command() -> None:
    code = "import sys; from jaxdata.cli import cli; cli.main(['--help'], standalone_mode=False); "
    code += "print(sorted({'numpy', 'jax', 'grain', 'rich', 'pydantic', 'yaml'} & {*sys.modules}))"
    done = python("-c", code)
    assert done.stdout.splitlines()[-1] == "[]"
    for name in cli.COMMANDS:
        assert f"  {name} " in done.stdout
        assert run(name, "--help").stdout.startswith(f"Usage: jaxdata {name}")
    assert "jaxdata" in apart("--version").stdout


def test_train_a_tokenizer_convert_and_read_back(pages: Path, tmp_path: Path) -> None:
    model, output = tmp_path / "my model/t.model", tmp_path / "data"
    trained = run("tokenizer", "train", pages, "--output", model, "--vocab-size", "400")
    assert f"wrote {model}: 400 tokens" in trained.stdout
    asked = ["convert", pages, "--output", output, "--source", "web", "--tokenizer"]
    done = apart(*asked, f"sentencepiece:{model}", "--workers", "1")
    assert done.stderr == ""
    read, wrote, took, then = done.stdout.splitlines()
    assert read.startswith("read 400 documents, 16.")
    assert wrote.endswith(f" kB, in {output}")
    assert took.startswith("took ")
    assert then.startswith("next: jaxdata inspect ")
    assert run(*shlex.split(then)[2:]).stdout.splitlines()[1] == "page 0: some words, 0 and größe"
    assert "already complete: nothing to do" in run(*asked, f"sentencepiece:{model}").stdout


def test_the_bar_of_a_training_counts_bytes(pages: Path, tmp_path: Path, monkeypatch: Any) -> None:
    seen: list[tuple[int, int | None]] = []

    @contextmanager
    def bar(_label: str, *, in_bytes: bool) -> Iterator[Callable[[int, int | None], None]]:
        assert in_bytes
        yield lambda done, total: seen.append((done, total))

    monkeypatch.setattr("jaxdata.cli.tokenizer.progress_bar", bar)
    run("tokenizer", "train", pages, "--output", tmp_path / "t.model", "--vocab-size", "400")
    texts = [json.loads(line)["text"] for line in pages.read_bytes().splitlines()]
    assert seen[-1] == (sum(len(text.encode()) for text in texts), None)


def script(name: str, *arguments: str | Path) -> str:
    """What a script of `tools/` prints in a checkout, where no jaxdata is installed."""
    packages = [path for path in sys.path if path and not Path(path, "pyproject.toml").exists()]
    path = {"PYTHONPATH": os.pathsep.join(packages)}
    return python("-S", ROOT / "tools" / name, *arguments, env=os.environ | path).stdout


def test_the_script_is_the_command(pages: Path, tmp_path: Path) -> None:
    options = ["--output", tmp_path / "b", "--source", "web", "--tokenizer", "bytes"]
    run("convert", pages, *options[:1], tmp_path / "a", *options[2:])
    assert script("convert.py", pages, *options).startswith("read 400 documents, ")
    assert (tmp_path / "a/dataset.json").read_bytes() == (tmp_path / "b/dataset.json").read_bytes()
    assert script("train.py", "--help").startswith("Usage: jaxdata train ")


def test_a_file_and_an_output_are_enough(pages: Path, tmp_path: Path) -> None:
    """The source is named after the file; a second has the tokenizer of the dataset."""
    out = tmp_path / "out"
    said = run("convert", pages, "-o", out).stderr
    assert "--source pages, by the name of the input\n" in said
    assert "--tokenizer bytes: none is given, and no dataset has one\n" in said
    said = run("convert", pages, "-o", out, "--source", "more").stderr
    assert f"--tokenizer bytes, that of {out}\n" in said
    assert {*jaxdata.open_dataset(out).names} == {"train/more", "train/pages"}
    for inputs in ([pages, pages], [f"{pages.parent}/*.jsonl"]):
        said = run("convert", *inputs, "-o", out, status=2).stderr
        assert "give --source, the name of these documents, such as 'web'" in said


def test_errors_of_a_command_become_exit_codes(monkeypatch: Any, capsys: Any) -> None:
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
    assert exits(MemoryError("8 TiB")) == (1, "error: not enough memory: 8 TiB\n")
    assert exits(KeyboardInterrupt()) == (130, "interrupted.\n")
    with pytest.raises(ZeroDivisionError):
        exits(ZeroDivisionError())


def test_a_ctrl_c_that_python_loses_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cleared:
        """Is interrupted where Python loses errors."""

        def __del__(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", cli._unraisable)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _wait_after(Cleared)
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_after(make: type) -> None:
    make()
    threading.Event().wait()


def test_the_cache_of_a_host_is_listed_verified_and_cleared(monkeypatch: Any) -> None:
    def said(*words: str, status: int = 0) -> list[str]:
        done = run("cache", *words, status=status)
        close_caches()  # as a process does that ends
        return (done.stdout or done.stderr).splitlines()

    root, keys = Path(os.environ["JAXDATA_CACHE"]), [each * 32 for each in "abc"]
    monkeypatch.setenv("JAXDATA_CACHE_BYTES", "50000000")
    cache = PageCache(place_of(root), 10**6)
    names = [f"{key}/{part}" for key in keys[:2] for part in ("0-1000", "1000-2000")]
    for name in [*names, f"{keys[2]}/column"]:
        assert cache.fetch(Wanted(name, 1_000, lambda name=name: [name.ljust(1_000).encode()]))  # type: ignore[misc]
    cache.label(keys[0], "gs://bkt/ds\ntrain/web/0.array_record")
    cache.label(keys[2], "gs://bkt/ds\ntrain/web/index/length")
    cache.close()
    plan = root / f"plans/{'0123abcd' * 4}.npy"
    plan.parent.mkdir()
    plan.write_bytes(bytes(3_000_000))
    listed = said("ls")
    assert listed[:5] == [
        f"folder   {root} (JAXDATA_CACHE)",
        "limit    50.0 MB, of which 0.0 MB are used (JAXDATA_CACHE_BYTES)",
        "pages    4 pages of 2 shards, 0.0 MB",
        "index    1 column, 0.0 MB",
        "kept     1 file of plans, 3.0 MB",
    ]
    assert ["gs://bkt/ds", "train/web", "1", "2", "0.0", "0.0"] in map(str.split, listed)
    assert len(json.loads("".join(said("ls", "--json")))["files"]) == 3
    assert said("verify") == ["5 pages (0.0 MB) compared: all are what was written"]
    damaged = [cache.folder / "pages" / name for name in (*names[1:3], f"{keys[2]}/column")]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-40])
    assert said("verify", status=1) == [
        f"damaged: gs://bkt/ds/train/web/0.array_record, bytes 1,000 to 2,000 ({damaged[0]})",
        f"damaged: a file {keys[1]}, bytes 0 to 1,000 ({damaged[1]})",
        f"damaged: gs://bkt/ds/train/web/index/length ({damaged[2]})",
        "5 pages (0.0 MB) compared: 3 damaged and removed; runs fetch them again where they need "
        "them. Look after the disk",
    ]
    assert said("clear") == ["2 pages (0.0 MB) removed"]
    assert said("clear", "--all") == ["0 pages (0.0 MB) and 1 kept file (3.0 MB) removed"]
    assert not plan.exists()


LONG = "step 1/3  a line that is longer than the terminal is wide" + " and on" * 20 + "!"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Gives what stands on the terminal so far, without colours."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    screen = Terminal()
    with redirect_stdout(screen), redirect_stderr(screen):
        yield lambda: re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())


def begins_a_line(text: str, line: str) -> bool:
    """Whether it stands at the left, where nothing was or what was there is erased."""
    before, found, after = text.partition(line)
    return bool(found) and before.endswith(("\n", "\x1b[2K")) and after.startswith("\n")


def test_a_line_goes_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as drawn:
        say("before")
        with progress_bar("training") as advance:
            advance(1, 3)
            say(LONG)
            advance(2, 3)
            print("printed")
        say("after")
    assert drawn().startswith("before\n")
    assert begins_a_line(drawn(), LONG)
    assert begins_a_line(drawn(), "printed")
    assert drawn().endswith("after\n")


def test_a_status_and_a_bar_share_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxdata.base.progress._PATIENCE", 0.0)
    shown = threading.Event()

    def text() -> str:
        shown.set()
        return "fetching"

    with terminal(monkeypatch) as drawn, progress_bar("training") as advance, status_line(text):
        assert shown.wait(60)
        advance(1, 2)
        say("a line")
    assert begins_a_line(drawn(), "a line")
    assert drawn().count("\x1b[?25l") == 1, "one display, not two that overwrite each other"
