"""What people are told of a dataset: whether it is whole (damage: `tests/damage`), its history."""

import json
import re
import threading
from pathlib import Path
from unittest import mock

import pytest

from jaxdata.base.version import VERSION
from jaxdata.dataset.lease import HISTORY, note_conversion, read_history, redacted
from jaxdata.dataset.manifest import read_manifest
from jaxdata.dataset.verify import Check, Damage, run_checks, verify
from jaxdata.storage import open_store
from tests import commands
from tests.builders import dataset

SHARD = "train/web/00000-00000.array_record"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    given = {"web": [5, 9, 30, 2, 17] * 4, "code": 6}
    return dataset(tmp_path / "d", given, shard_documents=12, record_tokens=16)


def test_a_whole_dataset_is_whole(copy: Path) -> None:
    """Small plans are compared when they are read, and files of others never."""
    for name in ("plans/a.npy", "other.arrays"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_bytes(b"?")
    calls: list[tuple[int, int]] = []
    result = verify(copy, progress=lambda *call: calls.append(call))
    assert (result.whole, result.damage, result.unfinished) == (True, (), ())
    assert result.counts == {
        **{"sources": 2, "shards": 3, "documents": 26, "bytes": 3 * 2**17},
        "tokens": read_manifest(open_store(copy)).sources["train/code"].tokens + 252,
    }
    last = str(result).splitlines()[-1]
    assert last.startswith(f"{copy}: whole (2 sources, 3 shards, 26 documents, ")
    assert last.endswith(" tokens, 0.4 MB)")
    assert (calls, calls[-1]) == (sorted(calls), (result.counts["bytes"],) * 2)


def test_checks_run_side_by_side_and_say_damage_in_their_order() -> None:
    three = threading.Barrier(3, timeout=30)

    def check(name: str, problem: str | Exception | None) -> Check:
        def found() -> str | None:
            three.wait()
            if isinstance(problem, Exception):
                raise problem
            return problem

        return Check(name, found, size=2)

    progress = mock.Mock()
    checks = [check("b", "first"), check("a", None), check("c", OSError(5, "no disk"))]
    damage = Damage("b", "first"), Damage("c", "it cannot be read: no disk")
    assert run_checks(checks, 3, progress) == damage
    assert progress.mock_calls == [mock.call(done, 6) for done in (2, 4, 6)]


def test_a_begun_conversion_is_no_damage(copy: Path) -> None:
    for source in ("val/web", "train/web"):  # documents are being added to the other
        (copy / source / "work").mkdir(parents=True)
        (copy / source / "work/parameters.json").write_text("{}")
        (copy / source / "quarantine-9.jsonl").write_text("{}")
    result = verify(copy)
    assert (result.whole, result.unfinished) == (True, ("val/web",))
    assert "unfinished: val/web; run the same conversion again" in str(result)


def test_the_command_says_it_and_exits_with_it(copy: Path) -> None:
    assert commands.run("verify", copy).stdout.splitlines()[-1].startswith(f"{copy}: whole (2 sou")
    assert json.loads(commands.run("verify", copy, "--json").stdout)["whole"]
    (copy / SHARD).write_bytes((copy / SHARD).read_bytes()[:-1])
    lines = commands.run("verify", copy, status=1).stdout.splitlines()
    assert lines[0] == f"DAMAGED {SHARD}: it has 131,071 bytes, not 131,072"
    assert lines[1].startswith("restore these files from a copy; or convert the same input into")
    assert lines[-1].startswith(f"{copy}: 1 damaged (2 sources, ")
    found = json.loads(commands.run("verify", copy, "--json", status=1).stdout)
    what = "it has 131,071 bytes, not 131,072"
    code = read_manifest(open_store(copy)).sources["train/code"].shards[0].name
    with (copy / code).open("ab") as file:
        file.write(b"x")
    more = Damage(code, "it has more than 131,072 bytes")
    assert {*verify(copy).damage} == {Damage(SHARD, what), more}
    assert found["damage"] == [{"file": SHARD, "what": what}]
    assert found["remedy"] == lines[1]
    assert (found["path"], found["counts"]["documents"]) == (str(copy), 26)


SECRET = "s3cr3t" * 4


def test_each_conversion_has_a_line_that_is_shown_and_compared_with_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a text"}\n')
    words = ["convert", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out", "--source", "web",
             "--tokenizer", "bytes"]  # fmt: skip
    for _ in range(2):  # the second finds it complete: no line
        commands.run(*words)
    store = open_store(tmp_path / "out")
    (first,) = read_history(store)
    assert first["command"] == f"jaxdata {' '.join(words)}"
    note_conversion(store, ["train/web"], "a \x1b[31m command")
    shown = commands.run("inspect", store.url).stdout
    assert f", jaxdata {VERSION}: a \\x1b[31m command\n" in shown
    assert verify(tmp_path / "out").whole


SAID: list[tuple[str, str | None]] = [
    (f"convert s3://me:{SECRET}@host/a.jsonl", "convert s3://…@host/a.jsonl"),
    (f"convert 'https://{SECRET}@h:80/a?b'", "convert 'https://…@h:80/a?b'"),
    (f"convert 'https://h/a?X-Amz-Signature={SECRET}&X-Amz-Date=1' --strip",
     "convert 'https://h/a?X-Amz-Signature=…&X-Amz-Date=…' --strip"),
    (f"jaxdata.convert('a', password='{SECRET}', b=1)", "jaxdata.convert('a', password=…, b=1)"),
    (f"x hf_{SECRET} sk-{SECRET}", "x … …"),
    ("convert gs://b/a@c/*.jsonl 'in/?.txt' --bos-token '<s>' --text-key a", None),
    ("a" * 16_384, None),
    ("a" * 16_385, f"{'a' * 16_384} …"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "kept"), SAID)
def test_secrets_are_left_out(command: str, kept: str | None) -> None:
    assert redacted(command) == (command if kept is None else kept)


def test_a_history_has_what_was_noted_and_passes_over_what_was_not(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert read_history(store) == []
    note_conversion(store, iter(["a", "b"]), "jaxdata s3://me:p@h/ü", {"kind": "x"})
    no_lines = b'[1]\n{"date": 1}\n?\n' + b"[" * 100_000 + b"\n"
    store.update(HISTORY, lambda was: (was or b"") + no_lines)
    note_conversion(store, ["a"], "second")
    one, two = read_history(store)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", one.pop("date"))
    said = {"sources": ["a", "b"], "command": "jaxdata s3://…@h/ü", "encoding": {"kind": "x"}}
    assert one == said | {"version": VERSION}
    assert (two["command"], two["encoding"]) == ("second", None)
