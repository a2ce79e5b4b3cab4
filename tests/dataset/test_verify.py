"""What `jaxdata verify` says of a whole dataset; what it says of damage is in `tests/damage`."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from unittest import mock

import pytest

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
    assert calls == sorted(calls)
    assert calls[-1] == (result.counts["bytes"],) * 2


def test_checks_run_side_by_side_and_say_damage_in_their_order() -> None:
    three = threading.Barrier(3, timeout=30)

    def check(name: str, problem: str | Exception | None) -> Check:
        def found() -> str | None:
            three.wait()
            if isinstance(problem, Exception):
                raise problem
            return problem

        return Check(name, found, "remedy", size=2)

    progress = mock.Mock()
    checks = [check("b", "first"), check("a", None), check("c", OSError(5, "no disk"))]
    assert run_checks(checks, 3, progress) == (
        Damage("b", "first", "remedy"),
        Damage("c", "it cannot be read: no disk", "remedy"),
    )
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
    assert found["damage"] == [{"file": SHARD, "what": what, "remedy": ""}]
    assert found["remedy"] == lines[1]
    assert (found["path"], found["counts"]["documents"]) == (str(copy), 26)
