"""Files of every format that hold the same texts."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

Entry = tuple[str, bytes, str]
"""name, content, where a link leads"""


def tar(*entries: Entry, form: int = tarfile.PAX_FORMAT, hard: bool = False) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content, target in entries:
            info = tarfile.TarInfo(name)
            info.size, info.linkname = len(content), target
            if target:
                info.type = tarfile.LNKTYPE if hard else tarfile.SYMTYPE
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def lines(*words: str) -> bytes:
    return b"".join(json.dumps({"text": word}).encode() + b"\n" for word in words)


def array(*words: str) -> bytes:
    return json.dumps([{"text": word} for word in words], indent=1, ensure_ascii=False).encode()


def table(words: list[str]) -> pa.Table:
    return pa.table({"id": list(range(len(words))), "text": words})


def _halves(words: list[str]) -> tuple[list[str], list[str]]:
    return words[: len(words) // 2], words[len(words) // 2 :]


def _members(words: list[str], form: int = tarfile.PAX_FORMAT) -> bytes:
    one, two = _halves(words)
    name = "deep/" * 30 + "a.jsonl.zst"  # longer than a header has room for
    entries = [("./README.pdf", b"no", ""), (name, zst(lines(*one)), "")]
    return tar(*entries, ("b.json", array(*two), ""), ("._b.json", b"no", ""), form=form)


def _saved(path: Path, words: list[str]) -> None:
    """What `save_to_disk` of Hugging Face's datasets writes."""
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": words}).save_to_disk(path, num_shards=3)
    (path / "cache-1.arrow").write_bytes(b"not a part of it")


def _arrow(path: Path, words: list[str]) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table(words).schema) as writer:
        writer.write_table(table(words), max_chunksize=7)


def _stream(path: Path, words: list[str]) -> None:
    with pa.ipc.new_stream(str(path), table(words).schema) as writer:
        writer.write_table(table(words), max_chunksize=20)


def _folder(path: Path, words: list[str]) -> None:
    path.mkdir()
    for number, word in enumerate(words):
        suffix = ("txt", "md", "rst", "html")[number % 4]
        (path / f"{number:04}.{suffix}").write_bytes(word.encode())


def _of(encode: Callable[[list[str]], bytes]) -> Callable[[Path, list[str]], None]:
    def write(path: Path, words: list[str]) -> None:
        path.write_bytes(encode(words))

    return write


def _texts(words: list[str]) -> bytes:
    packed = [zst(b"\xef\xbb\xbf" + word.encode()) for word in words]
    entries = [(f"{n:04}.txt.zst", data, "") for n, data in enumerate(packed)]
    return tar(*entries, form=tarfile.USTAR_FORMAT)


FORMATS: dict[str, Callable[[Path, list[str]], None]] = {
    "a.jsonl": _of(lambda words: lines(*words)),
    "a.jsonl.gz": _of(lambda words: gzip.compress(lines(*words))),
    "a.jsonl.zst": _of(lambda words: b"".join(zst(lines(*part)) for part in _halves(words))),
    "a.json": _of(lambda words: array(*words)),
    "b.json": _of(lambda words: lines(*words)),
    "a.json.zst": _of(lambda words: zst(array(*words))),
    "a.tar": _of(lambda words: _members(words, tarfile.GNU_FORMAT)),
    "a.tar.zst": _of(lambda words: zst(_members(words))),
    "texts.tar.gz": _of(lambda words: gzip.compress(_texts(words))),
    "texts": _folder,
    "groups.parquet": lambda path, words: pq.write_table(table(words), path, row_group_size=20),
    "one-group.parquet": lambda path, words: pq.write_table(table(words), path, compression="zstd"),
    "saved": _saved,
    "a.arrow": _arrow,
    "stream.arrow": _stream,
}
"""name -> writes texts as such a file"""
