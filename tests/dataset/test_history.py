"""The history of a dataset: what made it, without secrets, and outside all that is compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxdata.base.version import VERSION
from jaxdata.dataset.history import HISTORY, maker_of, note_conversion, read_history, redacted
from jaxdata.dataset.verify import verify
from jaxdata.storage import open_store
from tests.commands import run
from tests.storage.memory_store import MemoryStore

SECRET = "s3cr3t" * 4


def test_each_conversion_has_a_line_which_is_shown_and_compared_with_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a text"}\n')
    words = ["convert", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out", "--source", "web",
             "--tokenizer", "bytes"]  # fmt: skip
    for _ in range(2):  # the second finds it complete: no line
        run(*words)
    store = open_store(tmp_path / "out")
    (first,) = read_history(store)
    assert first["command"] == f"jaxdata {' '.join(words)}"
    note_conversion(store, ["train/web"], "a \x1b[31m command")
    assert f", jaxdata {VERSION}: a \\x1b[31m command\n" in run("inspect", store.url).stdout
    assert verify(tmp_path / "out").whole


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (f"convert s3://me:{SECRET}@host/a.jsonl", "convert s3://…@host/a.jsonl"),
        (f"convert 'https://{SECRET}@h:80/a?b'", "convert 'https://…@h:80/a?b'"),
        (
            f"convert 'https://h/a.jsonl?X-Amz-Signature={SECRET}&X-Amz-Date=1' --strip",
            "convert 'https://h/a.jsonl?X-Amz-Signature=…&X-Amz-Date=…' --strip",
        ),
        (
            f"jaxdata.convert('a', password='{SECRET}', b=1)",
            "jaxdata.convert('a', password=…, b=1)",
        ),
        (f"x hf_{SECRET} sk-{SECRET}", "x … …"),
        ("convert gs://b/a@c/*.jsonl 'in/?.txt' --bos-token '<s>' --text-key a", None),
        ("a" * 16_384, None),
        ("a" * 16_385, f"{'a' * 16_384} …"),
    ],
)
def test_secrets_are_left_out(command: str, kept: str | None) -> None:
    assert redacted(command) == (command if kept is None else kept)


def test_a_history_names_the_last_conversion_that_made_a_generation() -> None:
    store = MemoryStore()
    assert read_history(store) == []
    note_conversion(store, iter(["a", "b"]), "jaxdata s3://me:p@h/ü", {"a": "1"}, {"kind": "x"})
    store.write(HISTORY, store.files[HISTORY] + b'[1]\n{"date": 1}\n?\n' + b"[" * 100_000 + b"\n")
    note_conversion(store, ["a"], "second")
    note_conversion(store, ["a"], "third", {"a": "1", "b": "2"})
    one, two, three = found = read_history(store)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", one.pop("date"))
    assert one == {
        "version": VERSION, "sources": ["a", "b"], "command": "jaxdata s3://…@h/ü",
        "made": {"a": "1"}, "encoding": {"kind": "x"},
    }  # fmt: skip
    assert (two["made"], two["encoding"]) == ({}, None)
    assert maker_of(found, "a", "1") is three
    assert maker_of(found[:2], "a", "1") is one
    assert maker_of(found, "b", "1") is None
    assert maker_of([{"made": [1]}, {}], "a", "1") is None
