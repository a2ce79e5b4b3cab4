"""Text files: whole below a size, above it in pieces that are together the text, to the token."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.files import ReadSettings
from jaxdata.converter.inputs.reading import cut, raw_records
from tests.converter.here import documents, quarantine, run_here, statistics
from tests.converter.inputs.made import tar, zst
from tests.tokenizers.test_tokenizers import open_one

MARK = b"\xef\xbb\xbf"
WAYS: dict[str, Callable[[bytes], bytes]] = {
    "a.txt": lambda data: data,
    "a.txt.gz": lambda data: gzip.compress(data, mtime=0),
    "a.txt.zst": zst,
    "a.tar": lambda data: tar(("a.txt", data, "")),
}
words = st.sampled_from(["a", "one", "Zwölf", "語", "\U0001f9a5", "x" * 40, ".", "", "\r"])
gaps = st.sampled_from([" ", "\n", "\n\n", "\r\n\r\n", "", "\n\n\n"])
long_texts = st.lists(st.tuples(words, gaps), min_size=1, max_size=150).map(
    lambda pairs: "".join(word + gap for word, gap in pairs)
)


def pieces_of(path: Path, settings: ReadSettings, unit_bytes: int) -> tuple[list[Any], list[int]]:
    units = [*cut(find_inputs(path), settings, unit_bytes)]
    reads = [read for unit in units for read in unit.reads]
    found = [raw for read in reads for raw in raw_records(*read, settings)]
    return found, [unit.text_bytes for unit in units if unit.parts[0].data]


@given(long_texts, st.integers(16, 60), st.integers(1, 600), st.booleans(), st.booleans())
@example("語" * 200, 16, 1, False, False)
@example("x" * 16 * 16, 16, 1, True, False)
@example("x" * (16 * 16 + 1), 16, 1, True, False)
@settings(max_examples=60)
def test_pieces_are_together_the_text_and_the_same_however_it_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    text: str,
    piece_bytes: int,
    unit_bytes: int,
    joined: bool,
    marked: bool,
) -> None:
    data = text.encode()
    folder = tmp_path_factory.getbasetemp()
    read = ReadSettings(None, piece_bytes=piece_bytes, joined=joined)
    ways, units = [], []
    for name, way in WAYS.items():
        (folder / name).write_bytes(way(MARK * marked + data))
        found, sizes = pieces_of(folder / name, read, unit_bytes)
        ways.append(found)
        units += [sizes] * (len(sizes) > 1)
    assert all(one == found for one in ways)
    assert all(sizes == units[0] for sizes in units)
    assert "".join(piece.decode() for piece, *_ in found) == text  # no character is cut
    edges = [(piece.begins, piece.ends) for piece in found]
    size = len(data) + 3 * marked
    if size <= 16 * piece_bytes:
        assert edges == [(True, True)] * bool(data)
        return
    assert len(found) == len(range(piece_bytes, size - piece_bytes // 2, piece_bytes)) + 1
    assert all(piece_bytes // 4 < len(piece.data) <= 2 * piece_bytes for piece in found)
    middle = [(not joined, not joined)] * (len(found) - 2)
    assert edges == [(True, not joined), *middle, (not joined, True)]


@pytest.mark.parametrize(
    ("near", "joined", "ends_with"),
    [
        ("y. One\nTwo.\n\n\nThree four", False, "y. One\nTwo.\n\n\n"),
        ("y. One\r\nTwo.\r\n\r\nThree four", False, "y. One\r\nTwo.\r\n\r\n"),
        ("y. One two\nthree four", False, "y. One two\n"),
        ("y. One two three four", False, ""),
        ("y. One\nTwo.\n\nThree four", True, "y. One\nTwo.\n\nThree"),
        ("y. One two.\n1 2 3", True, "y. One"),
        ("y. 1 2\n3 4", True, "y. 1 2\n"),
    ],
)
def test_where_a_text_is_cut(tmp_path: Path, near: str, joined: bool, ends_with: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 200 + near.encode() + b"-" * 4_000)
    read = ReadSettings(None, piece_bytes=200, joined=joined)
    first, second = (piece.data for piece in pieces_of(tmp_path / "a.txt", read, 1)[0][:2])
    assert first[200:] == ends_with.encode()
    assert second.startswith(near.encode()[len(ends_with) :])


def tokens(path: Path, output: Path, **options: Any) -> list[np.ndarray]:
    """The tokens of every piece."""
    run_here(path, output, **options)
    return documents(output)


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_tokens_of_pieces_are_those_of_the_text(
    shared_data: Path, tmp_path: Path, name: str
) -> None:
    tokenizer = open_one(shared_data, name)
    text = "".join(f"Chapter {n}: it was no\nmore than {n * n} words.\n\n" for n in range(2_000))
    (tmp_path / "a.txt").write_text(text)
    common = {"tokenizer": tokenizer, "unit_bytes": 20_000, "piece_bytes": 5_000}
    found = tokens(tmp_path / "a.txt", tmp_path / "out", **common)
    assert len(found) > 15
    (expected,) = tokenizer.encode([text])
    assert np.array_equal(np.concatenate(found), [*expected, tokenizer.eod_id])


LINES = "".join(f"line {n} of {n * 7919}\n" for n in range(2_000))


def test_a_piece_is_a_record_for_all_that_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    data = bytearray(LINES.encode())
    data[5_000] = 0xFF
    path.write_bytes(data)
    report = run_here(path, tmp_path / "out", piece_bytes=500, max_chars=505)
    (bad,) = quarantine(tmp_path / "out")
    assert bad["reason"] == "not UTF-8"
    assert b"\xff" in (raw := base64.b64decode(bad["raw_base64"]))
    assert raw in data
    records = statistics(tmp_path / "out")["records"]
    assert records == report.documents + 1 + sum(report.dropped.values())
    assert list(report.dropped) == ["longer than 505 characters"]
    path.write_text("x" * 100 + "\x01" * 400 + "y" * 1_500)
    report = run_here(path, tmp_path / "clean", piece_bytes=100, ftfy=True)
    assert report.dropped == {"a piece of a text without tokens": 4}
    with pytest.raises(InputError, match="piece_bytes=15: expected at least 16"):
        tokens(path, tmp_path / "none", piece_bytes=15)
