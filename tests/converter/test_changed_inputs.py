"""Inputs that change between a kill and the resume, or under a conversion."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from tests.converter.here import interrupted, records, run, tree, write_lines

SIZES: dict[str, Any] = {"unit_bytes": 20_000}  # about 12 units
TEXTS = [f"{number:05} " + "abc" * (number * 7 % 60) for number in range(2_500)]
"""Enough that the middle of a file is in neither head nor tail."""
EDITED = [text.replace("abc", "xyz") if n == 1_207 else text for n, text in enumerate(TEXTS)]


def convert(inputs: Any, output: Path, **options: Any) -> Any:
    return run(inputs, output, **SIZES, **options)


def fresh(inputs: Path, output: Path, **options: Any) -> dict[str, str]:
    convert(inputs, output, **options)
    return tree(output)


def write(path: Path, texts: list[str]) -> Path:
    return write_lines(path, records(*texts))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl", TEXTS)


def test_records_that_are_given_again_are_known_by_their_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = interrupted(iter(TEXTS), tmp_path / "out", 8, **SIZES)
    shards = [tmp_path / f"out/train/web/{path.stem}.array_record" for path in done]
    before = [path.stat().st_mtime_ns for path in shards]
    convert(iter(TEXTS), tmp_path / "out")
    assert [path.stat().st_mtime_ns for path in shards] == before
    assert caplog.messages == []


@settings(max_examples=5)
@given(st.data())
def test_any_edit_at_any_time(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Lines joined, cut, made bad, moved from one unit to the next; again and again."""
    folder = tmp_path_factory.mktemp("edit")
    source, out, split = folder / "a.jsonl", folder / "out", {"split_ratio": "train=2,val=1"}
    content = bytearray(write(source, TEXTS).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        interrupted(source, out, data.draw(st.integers(1, 11)), **SIZES, **split)
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(2**16, len(content) - 2**16 - 1))
            content[at] = data.draw(st.sampled_from(b'\n "}x'))
        source.write_bytes(content)
    convert(source, out, **split)
    assert tree(out) == fresh(source, folder / "fresh", **split)


def convert_while(change: Callable[[], object], inputs: Path, output: Path) -> None:
    """Make a change when half of the work is done."""
    made = []

    def progress(done: int, total: int) -> None:
        if done > total / 2 and not made:
            made.append(change())

    convert(inputs, output, progress=progress)


def test_a_file_that_changes_meanwhile_is_read_again_as_long_as_it_was_or_refused(
    source: Path, tmp_path: Path
) -> None:
    expected, out = fresh(source, tmp_path / "fresh"), tmp_path / "out"
    convert_while(lambda: write(source, [*TEXTS, "more"]), source, tmp_path / "grown")
    assert tree(tmp_path / "grown") == expected
    write(source, TEXTS)
    convert_while(lambda: write(source, EDITED), source, tmp_path / "edited")
    assert tree(tmp_path / "edited") == fresh(source, tmp_path / "fresh-edited")
    says = rf"{source} was modified while it was converted\. Delete {out}/train/web, run the same"
    with pytest.raises(InputError, match=says):
        convert_while(lambda: source.write_bytes(b"{}\n" * 99_999), source, out)
    assert not (out / "dataset.json").exists()
