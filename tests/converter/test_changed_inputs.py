"""Inputs that change between a kill and the resume, under a conversion, or after it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.changes import ContentHash
from jaxdata.converter.inputs import files as identity
from jaxdata.converter.inputs.parsing import Raw, TextPiece, Unreadable
from jaxdata.converter.receipts import Receipt
from jaxdata.dataset.checksums import checked_bytes
from tests.converter import here
from tests.converter.here import archive, records, run, write_lines
from tests.dataset.trees import tree

SIZES: dict[str, Any] = {"unit_bytes": 20_000, "piece_bytes": 1_000}  # about 12 units
TEXTS = [f"{number:05} " + "abc" * (number * 7 % 60) for number in range(2_500)]
"""Enough that the middle of a file is in neither head nor tail."""
EDITED = [text.replace("abc", "xyz") if n == 1_207 else text for n, text in enumerate(TEXTS)]


def jsonl(texts: list[str]) -> bytes:
    return b"".join(line + b"\n" for line in records(*texts))


def tar(texts: list[str]) -> bytes:
    return archive({f"{n}.jsonl": jsonl(texts[n : n + 500]) for n in range(0, len(texts), 500)})


FORMATS = {"a.jsonl": jsonl, "a.tar": tar}


def convert(inputs: Path, output: Path, **options: Any) -> Any:
    return run(inputs, output, **SIZES, **options)


def interrupted(inputs: Path, output: Path, units: float = 8, **options: Any) -> list[Receipt]:
    """The receipts when so many units are done."""
    found = here.interrupted(inputs, output, units, **SIZES, **options)
    assert found
    return [Receipt.decode(path.stem, checked_bytes(path.read_bytes()) or b"") for path in found]


def fresh(inputs: Path, output: Path, **options: Any) -> dict[str, str]:
    convert(inputs, output, **options)
    return tree(output)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(TEXTS))
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_an_edit_in_the_middle_is_seen_by_a_resume_and_refused_when_all_was_converted(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Size, head and tail are the same."""
    source, out = tmp_path / "in" / name, tmp_path / "out"
    source.parent.mkdir()
    source.write_bytes(FORMATS[name](TEXTS))
    digest = identity.look_at(str(source)).digest
    interrupted(source.parent, out)
    source.write_bytes(FORMATS[name](EDITED))
    assert identity.look_at(str(source)).digest == digest
    convert(source.parent, out)
    assert f"input {name!r} changed since it was converted: converted again (00000-0" in caplog.text
    before = tree(out)
    assert before == fresh(source.parent, tmp_path / "fresh")
    os.utime(source)
    assert convert(source.parent, out).already_complete
    source.write_bytes(FORMATS[name](TEXTS))
    more = write_lines(source.parent / "more.jsonl", records("more"))
    says = f"input '{name}' changed since it was converted, though not in size, head and tail"
    with pytest.raises(InputError, match=says):
        convert(source.parent, out, append=True)
    more.unlink()
    with pytest.raises(InputError, match=says):
        convert(source.parent, out)
    assert tree(out) == before
    source.write_bytes(FORMATS[name](EDITED))
    assert convert(source.parent, out).already_complete


@pytest.mark.parametrize("verify_inputs", [False, True])
def test_an_edit_without_a_trace_is_seen_on_demand(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify_inputs: bool
) -> None:
    monkeypatch.setattr(identity, "_stamp", lambda _: 0)
    interrupted(source, tmp_path / "out")
    source.write_bytes(jsonl(EDITED))
    convert(source, tmp_path / "out", verify_inputs=verify_inputs)
    assert (tree(tmp_path / "out") == fresh(source, tmp_path / "fresh")) == verify_inputs


@settings(max_examples=5)
@given(st.data())
def test_any_edit_at_any_time(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Lines joined, cut, made bad, moved from one unit to the next; again and again."""
    folder = tmp_path_factory.mktemp("edit")
    source, out, split = folder / "a.jsonl", folder / "out", {"split_ratio": "train=2,val=1"}
    content = bytearray(jsonl(TEXTS))
    source.write_bytes(content)
    for _ in range(data.draw(st.integers(1, 3))):
        interrupted(source, out, data.draw(st.integers(1, 11)), **split)
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(2**16, len(content) - 2**16 - 1))
            content[at] = data.draw(st.sampled_from(b'\n "}x'))
        source.write_bytes(content)
    convert(source, out, **split)
    assert tree(out) == fresh(source, folder / "fresh", **split)


def convert_while(change: Callable[[], object], inputs: Path, output: Path, **options: Any) -> None:
    """Make a change when half of the work is done."""
    made = []

    def progress(done: int, total: int) -> None:
        if done > total / 2 and not made:
            made.append(change())

    convert(inputs, output, progress=progress, **options)


@pytest.mark.parametrize("contiguous", [False, True])
def test_an_edit_under_a_conversion(source: Path, tmp_path: Path, contiguous: bool) -> None:
    split = {"split_ratio": "train=2,val=1", "split_contiguous": True} if contiguous else {}
    convert_while(lambda: source.write_bytes(jsonl(EDITED)), source, tmp_path / "out", **split)
    assert tree(tmp_path / "out") == fresh(source, tmp_path / "fresh", **split)


def test_a_file_that_grows_meanwhile_is_read_as_it_was_and_one_that_is_another_refused(
    source: Path, tmp_path: Path
) -> None:
    expected, longer, out = (
        fresh(source, tmp_path / "fresh"),
        jsonl([*TEXTS, "more"]),
        tmp_path / "out",
    )
    convert_while(lambda: source.write_bytes(longer), source, tmp_path / "grown")
    assert tree(tmp_path / "grown") == expected
    source.write_bytes(jsonl(TEXTS))
    says = rf"{source} was modified while it was converted\. Delete {out}/train/web, run the same"
    with pytest.raises(InputError, match=says):
        convert_while(lambda: source.write_bytes(b"{}\n" * 99_999), source, out)
    assert not (out / "dataset.json").exists()


_RECORDS = st.lists(
    st.one_of(
        st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")),
        st.binary(max_size=9).map(TextPiece),
        st.builds(Unreadable, st.just("a reason longer than lines"), st.binary(max_size=3)),
        st.dictionaries(st.text(max_size=2), st.text(max_size=3) | st.none() | st.integers()),
    ),
    max_size=6,
)


@given(_RECORDS, _RECORDS)
def test_other_records_have_another_hash(one: list[Raw], other: list[Raw]) -> None:
    hashes = []
    for raw in (one, other):
        content = ContentHash()
        content.add(raw)
        hashes.append(content.hexdigest())
    assert (hashes[0] == hashes[1]) == (one == other)
