"""Which inputs of a source are read again, and what is said of those that changed."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from jaxdata.base.errors import InputError
from jaxdata.converter import changes as known_inputs
from jaxdata.converter.changes import check_known, content_of
from jaxdata.converter.inputs.files import FilePart, InputFile, ReadSettings, look_at
from jaxdata.dataset.history import InputHashes
from jaxdata.dataset.lease import leased
from jaxdata.dataset.manifest import SourceEntry
from jaxdata.storage import Store, open_store
from tests.converter.decisions.made import JSON, parameters, source


class Known:
    """A source of files, with the hashes that its conversion left, and the files as they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: Store = open_store(str(folder / "d"))

    def file(self, name: str, text: str) -> InputFile:
        path = self.folder / name
        path.write_text(text)
        look = look_at(str(path))
        return InputFile(str(self.folder), name, look.size, JSON, look.digest, look.stamp)

    def hashes(self, contents: dict[str, str], name: str = "inputs.json") -> None:
        made = InputHashes(
            columns=None,
            record_bytes=99,
            piece_bytes=16,
            joined=False,
            unit_bytes=99,
            contents=contents,
        )
        self.store.write(f"train/web/{name}", made.encode())

    def entry(self, *files: InputFile, **fields: Any) -> SourceEntry:
        inputs = {file.name: file.digest for file in files}
        return source(parameters(update={"inputs": inputs}), **fields)

    def check(self, entry: SourceEntry, *files: InputFile, every: bool = False) -> None:
        check_known(self.store, "train/web", {"train/web": entry}, files, every=every, expansion=9)


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Known:
    monkeypatch.setattr(known_inputs, "written_at", lambda file: WRITTEN.get(file.name, 0))
    WRITTEN.clear()
    return Known(tmp_path)


WRITTEN: dict[str, int] = {}
"""When files were written, in ns since 1970."""


def hash_of(file: InputFile) -> str:
    return content_of(file, FilePart(0, 0, file.size), ReadSettings(None, 99, piece_bytes=16))


def test_files_that_nobody_touched_since_are_not_read(known: Known) -> None:
    one = known.file("a.jsonl", '{"text": "1"}\n')
    known.hashes({"a.jsonl": "0" * 16})
    known.check(known.entry(one), one)
    with pytest.raises(InputError) as caught:
        known.check(known.entry(one), one, every=True)
    assert str(caught.value) == (
        "input 'a.jsonl' changed since it was converted, though not in size, head and tail: "
        f"{known.store.url} has its documents of before. Convert it into another --source or "
        "--output"
    )
    since = known.store.written_at("train/web/inputs.json")
    assert since is not None
    WRITTEN["a.jsonl"] = since - 1
    known.check(known.entry(one), one)
    WRITTEN["a.jsonl"] = since
    with pytest.raises(InputError, match=r"^input 'a\.jsonl' changed since it was converted"):
        known.check(known.entry(one), one)
    other = one._replace(digest="another")
    known.check(known.entry(one), other, every=True)


def test_files_that_are_what_they_were_are_read_once_and_their_hashes_renewed(
    known: Known, caplog: pytest.LogCaptureFixture
) -> None:
    files = [known.file(name, f'{{"text": "{name}"}}\n') for name in ("a.jsonl", "b.jsonl")]
    known.hashes({file.name: hash_of(file) for file in files})
    entry, path = known.entry(*files), known.folder / "d/train/web/inputs.json"
    known.check(entry, *files)
    assert not caplog.messages
    for n in range(3):
        os.utime(path, (1, 1))
        WRITTEN.update({"a.jsonl": 2 * 10**9, "b.jsonl": 2 * 10**9 * (n // 2)})
        with leased(known.store, ["train/web"]) if n else nullcontext():
            known.check(entry, *files)
        assert (path.stat().st_mtime > 1) == (n == 0), "nothing is written where another does"
    says = [f"reading {n} known inputs again (0 MB): they may have changed" for n in (1, 1, 2)]
    assert caplog.messages == says
    os.utime(path, (3, 3))
    known.check(entry, *files)
    assert caplog.messages == says
    known.check(entry, *files, every=True)
    assert caplog.messages == [*says, says[-1]]
    assert path.stat().st_mtime > 3


def test_each_addition_left_hashes_of_its_own(known: Known) -> None:
    first, second = (known.file(name, f'{{"text": "{name}"}}\n') for name in ("a.jsonl", "b.jsonl"))
    before = known.entry(first, documents=1)
    entry = known.entry(
        first, second, documents=2, generations=[before.as_generation()], index="index-1"
    )
    known.hashes({"a.jsonl": hash_of(first)})
    known.check(entry, first, second)
    known.check(entry, first, every=True)
    known.hashes({"b.jsonl": "0" * 16}, "inputs-1.json")
    with pytest.raises(InputError, match=r"^input 'b\.jsonl' changed"):
        known.check(entry, first, second, every=True)
    known.hashes({"b.jsonl": hash_of(second)}, "inputs-1.json")
    known.check(entry, first, second, every=True)
