"""Every input format gives the same documents; what a file is shows in its content."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from jaxdata.converter import texts
from jaxdata.converter.inputs.cutting import cut
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.inputs.units import ReadSettings
from jaxdata.errors import InputError
from tests.converter.test_convert import decoded, documents, run


def lines(words: list[str]) -> bytes:
    return b"".join(json.dumps({"id": i, "text": w}).encode() + b"\n" for i, w in enumerate(words))


def array(words: list[str]) -> bytes:
    return json.dumps([{"text": word} for word in words], indent=1, ensure_ascii=False).encode()


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def tar(files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def half(words: list[str]) -> tuple[list[str], list[str]]:
    return words[: len(words) // 2], words[len(words) // 2 :]


def table(words: list[str]) -> pa.Table:
    return pa.table({"id": list(range(len(words))), "text": words})


def parquet(path: Path, words: list[str], **options: object) -> None:
    pq.write_table(table(words), path, **options)


def saved(path: Path, words: list[str]) -> None:
    """What `save_to_disk` of Hugging Face's datasets writes."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": words}).save_to_disk(path, num_shards=3)
    (path / "cache-1.arrow").write_bytes(b"not a part of it")


def arrow_file(path: Path, words: list[str]) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table(words).schema) as writer:
        writer.write_table(table(words), max_chunksize=7)


def members(words: list[str]) -> dict[str, bytes]:
    one, two = half(words)
    name = "deep/" * 30 + "a.jsonl.zst"  # longer than a header has room for
    return {"./README.pdf": b"no", name: zst(lines(one)), "b.json": array(two), "._b.json": b"no"}


def of(encode: Callable[[list[str]], bytes]) -> Callable[[Path, list[str]], None]:
    def write(path: Path, words: list[str]) -> None:
        path.write_bytes(encode(words))

    return write


FORMATS: dict[str, Callable[[Path, list[str]], None]] = {
    "a.jsonl": of(lines),
    "a.jsonl.gz": of(lambda words: gzip.compress(lines(words))),
    "a.jsonl.zst": of(lambda words: b"".join(zst(lines(part)) for part in half(words))),
    "a.json": of(array),
    "b.json": of(lines),
    "a.json.gz": of(lambda words: gzip.compress(array(words))),
    "a.json.zst": of(lambda words: zst(array(words))),
    "a.jsonl.zst.tar": of(lambda words: tar(members(words))),
    "a.tar": of(lambda words: tar(members(words), tarfile.GNU_FORMAT)),
    "a.tar.zst": of(lambda words: zst(tar(members(words)))),
    "a.tar.gz": of(lambda words: gzip.compress(tar(members(words)))),
    "a.parquet": lambda path, words: parquet(path, words, row_group_size=100),
    "one-group.parquet": lambda path, words: parquet(path, words, compression="zstd"),
    "saved": saved,
    "a.arrow": arrow_file,
}
MISLEADING = {
    "lines.jsonl": "a.jsonl.gz",
    "lines.jsonl.gz": "a.jsonl.zst",
    "plain.jsonl.zst": "a.jsonl",
    "array.jsonl": "a.json",
    "table.jsonl": "a.parquet",
    "lines.parquet.jsonl": "a.tar.gz",
    "packed.tar": "a.tar.zst",
    "big.JSONL.GZ": "a.jsonl.gz",
}


@pytest.fixture(scope="module")
def words(shared_data: Path) -> list[str]:
    """1,000 real documents, among them long, empty and odd ones."""
    files = [shared_data / name for name in ("multilingual.jsonl.zst", "code-1.jsonl.gz")]
    found = [text for file in files for text in list(texts(file))[:499]]
    return [*found, "", 'a\u2028b \U0001f9a5 {["\\]} \x00\r\n']


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_documents(name: str, words: list[str], tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name, words)
    report = run(tmp_path / name, tmp_path / "out", unit_bytes=100_000)
    assert decoded(tmp_path / "out") == words
    assert not report.quarantined
    assert list(texts(tmp_path / name)) == words


@pytest.mark.parametrize("name", MISLEADING)
def test_content_tells_what_a_name_does_not(name: str, words: list[str], tmp_path: Path) -> None:
    FORMATS[MISLEADING[name]](tmp_path / name, words)
    assert list(texts(tmp_path / name)) == words


def test_a_real_tokenizer_gives_the_same_tokens(
    words: list[str], shared_data: Path, tmp_path: Path
) -> None:
    spec = f"tiktoken:{shared_data / 'tokenizers/tiktoken/gpt2.tiktoken'}"
    found = []
    for name in ("a.jsonl", "a.tar.zst"):
        FORMATS[name](tmp_path / name, words)
        run(tmp_path / name, tmp_path / f"out-{name}", tokenizer=spec, unit_bytes=500_000)
        found.append([d.tolist() for d in documents(tmp_path / f"out-{name}")])
    assert found[0] == found[1]
    assert len(found[0]) == 1_000


def test_text_files_in_folders_and_archives(words: list[str], tmp_path: Path) -> None:
    expected = [word for word in words if word and word[0] != "\ufeff"]
    files = {f"{i:04d}.txt": word.encode() for i, word in enumerate(expected)}
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar(files)))
    packed = {f"{name}.zst": zst(b"\xef\xbb\xbf" + data) for name, data in files.items()}
    (tmp_path / "b.tar").write_bytes(tar(packed, tarfile.USTAR_FORMAT))
    (tmp_path / "c").mkdir()
    for name, data in files.items():
        (tmp_path / "c" / name).write_bytes(data)
    for name in ("a.tar.gz", "b.tar", "c"):
        assert list(texts(tmp_path / name)) == expected
        run(tmp_path / name, tmp_path / "out", source=name, unit_bytes=300_000)
        assert decoded(tmp_path / "out", f"train/{name}") == expected


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.json", "a.tar.zst", "one-group.parquet"])
def test_one_file_is_work_for_many(name: str, words: list[str], tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name, words)
    units = list(cut(find_inputs(tmp_path / name), ReadSettings(("text",)), 200_000))
    assert len(units) > 5
    assert all(unit.text_bytes < 2_000_000 for unit in units)
    assert [unit.place for unit in units] == sorted(unit.place for unit in units)


def test_lists_of_files(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").write_bytes(lines([name]))
    (tmp_path / "lists").mkdir()
    one, two = tmp_path / "lists/one", tmp_path / "lists/two"
    one.write_text("# the first\n../a.jsonl\n\n")
    two.write_text(f"{tmp_path}/c*.jsonl\n../a.jsonl\n")
    run([], tmp_path / "out", files_from=[one, two])
    assert decoded(tmp_path / "out") == ["a", "c"]
    with pytest.raises(InputError, match=r"--files-from .*none cannot be read.*a text file with"):
        run([], tmp_path / "more", files_from=[tmp_path / "none"])
    one.write_text("../missing.jsonl")
    with pytest.raises(InputError, match=r"missing\.jsonl: no such file or folder"):
        run([], tmp_path / "more", files_from=[one])


def test_a_saved_dataset_of_several_splits_asks_for_one(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    one = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "both")
    with pytest.raises(InputError, match=r"several splits.*give one of .*both/test, .*both/train"):
        run(tmp_path / "both", tmp_path / "out")
    run(tmp_path / "both/train", tmp_path / "out")
    assert decoded(tmp_path / "out") == ["a"]
    (tmp_path / "both/train/data-00000-of-00001.arrow").unlink()
    with pytest.raises(InputError, match=r"lacks 'data-00000-of-00001\.arrow'"):
        run(tmp_path / "both/train", tmp_path / "more")
    (tmp_path / "both/train/state.json").write_text("[" * 10**5)
    with pytest.raises(InputError, match=r"state\.json was not written by save_to_disk"):
        run(tmp_path / "both/train", tmp_path / "more")


def test_objects_over_several_lines(tmp_path: Path) -> None:
    words = ["a", "b {", "]"]
    pretty = "\n".join(json.dumps({"text": word}, indent=2) for word in words)
    (tmp_path / "a.json").write_text(pretty)
    assert list(texts(tmp_path / "a.json")) == words
    (tmp_path / "a.json").write_text(json.dumps({"text": "one"}))
    assert list(texts(tmp_path / "a.json")) == ["one"]
