"""A task and an input format that are defined here and nowhere else, from the command line on."""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

import numpy as np
import pytest

from jaxdata.base.settings import setting
from jaxdata.converter import tasks
from jaxdata.converter.inputs import reading as formats
from jaxdata.converter.inputs.files import ReadSettings
from jaxdata.converter.inputs.parsing import text_of
from jaxdata.converter.inputs.reading import Format
from jaxdata.converter.parameters import options
from jaxdata.converter.tasks import Encoded, Prepared, Record, Settings, Task
from jaxdata.tokenizers import Tokenizer
from tests.commands import run as command
from tests.converter.here import decoded, manifest, records, statistics, write_lines


class ToySettings(Settings):
    makes: ClassVar[str] = "words, one a document"

    name: Literal["toy"] = "toy"
    shout: bool = setting(False, "Write words in capitals.")
    longest: int = setting(9, "Longest word that is kept.", ge=1)
    mark: str = setting("", "Text before each word.", escapes=True)


class ToyTask(Task):
    strings = True
    keys = ("text",)

    def __init__(self, settings: ToySettings, tokenizer: Tokenizer, clean: Any) -> None:
        self._settings, self._tokenizer, self._clean = settings, tokenizer, clean

    def prepare(self, record: Record) -> Prepared:
        text = text_of(record, "text")
        words = [word for word in self._clean(text).split() if len(word) <= self._settings.longest]
        change = str.upper if self._settings.shout else str
        return Prepared([self._settings.mark + change(word) for word in words], (text,))

    def texts(self, document: str, stream: str | None = None) -> tuple[str]:
        return (document,)

    def encode(self, documents: Sequence[str]) -> list[tuple[Encoded]]:
        ids = self._tokenizer.encode(documents)
        return [(Encoded(np.append(one, self._tokenizer.eod_id).astype(np.uint16)),) for one in ids]


class ToyFormat(Format):
    """Texts with bars between them."""

    name = "toy"
    suffixes = ("toy", "toys")

    def records(self, stream: IO[bytes], settings: ReadSettings) -> Iterator[bytes]:
        for text in stream.read().decode().split("|"):
            yield json.dumps({"text": text}).encode()


CONVERT = ("convert", "--source", "web", "--tokenizer", "bytes")


def test_a_task_is_a_registered_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.task_names()
    monkeypatch.setattr(tasks, "_tasks", dict(tasks._tasks))
    tasks.register(ToySettings, ToyTask)
    path = write_lines(tmp_path / "a.jsonl", records("one two", "incomprehensible", "three"))
    chosen = ("--task=toy", "--set", "shout=true", "--set", r"mark=\t")
    given = (*CONVERT, path, "--output", tmp_path / "out", *chosen)
    assert "dropped 1 record (1 no document in it)" in command(*given).stdout
    assert decoded(tmp_path / "out") == ["\tONE", "\tTWO", "\tTHREE"]
    parameters = manifest(tmp_path / "out")["sources"]["train/web"]["parameters"]
    assert {"task": "toy", "shout": True, "mark": "\t"}.items() <= parameters.items()
    assert "longest" not in parameters  # as every default
    assert statistics(tmp_path / "out")["raw_bytes"] == len("one two") + len("three")
    assert "already complete" in command(*given).stdout
    assert "longest was 9, is 3" in command(*given, "--set", "longest=3", status=1).stderr
    assert "0 is not in the range x>=1" in command(*given, "--set", "longest=0", status=2).stderr
    every = " ".join(command("convert", "--help-all").stdout.split())
    assert "toy: words, one a document." in every
    assert "toy: Longest word that is kept. [default: 9] [x>=1]" in every


def test_a_format_is_a_registered_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats.all_formats()
    monkeypatch.setattr(formats, "_formats", dict(formats._formats))
    formats.register(ToyFormat())
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.toy").write_text("one|two")
    (tmp_path / "in/b.toys.gz").write_bytes(gzip.compress(b"three"))
    command(*CONVERT, tmp_path / "in", "--output", tmp_path / "out")
    assert decoded(tmp_path / "out") == ["one", "two", "three"]
    (tmp_path / "in/c.pdf").touch()
    refused = command(*CONVERT, tmp_path / "in/c.pdf", "--output", tmp_path / "other", status=1)
    assert ".toy" in refused.stderr


def test_every_option_is_described() -> None:
    for name, one in options().items():
        assert one.help, name
        assert one.heading, name
