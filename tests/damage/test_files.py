"""Each file that is not what it should be is named, in words that help: a table of them."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxdata.base.errors import DatasetError
from jaxdata.dataset import index
from jaxdata.dataset.manifest import with_checksum
from jaxdata.dataset.verify import verify
from jaxdata.foreign.materialize import verify_rows
from jaxdata.storage import local, open_store, zarr
from tests.damage.harm import Harm, changed, content, flip, little_memory, sealed, set_value
from tests.damage.specimens import SMALL, SPECIMENS, copied, files_of, part_of

KINDS = SPECIMENS | {"small": SMALL}
NOTHING = None


class Row(NamedTuple):
    """One harm, and what people are told.

    Attributes:
        file: a pattern; the first file of it is harmed.
        harm: what is done to it.
        read: the error of reading it all, its parts between " … "; None: all is as it was; "" is
            for what only a look at everything tells.
        look: what `verify` says of the file; None: nothing.
    """

    file: str
    harm: Harm
    read: str | None
    look: str | None = None


def named(file: str, harm: Harm, what: str) -> Row:
    """Harm that both reading and looking tell in the same words."""
    return Row(file, harm, what, what)


def replaced(make: Callable[[Path], object]) -> Harm:
    """Something else in the place of the file."""

    def work(path: Path) -> None:
        path.unlink()
        make(path)

    return work


def said(old: bytes, new: bytes) -> Harm:
    """Another text in the place of one."""
    return changed(lambda was: was.replace(old, new, 1))


grown, cut = changed(lambda was: was + b"x"), changed(lambda was: was[:-1])
gone, empty, pipe = Path.unlink, replaced(Path.touch), replaced(os.mkfifo)


def sparse(path: Path) -> None:
    """A tebibyte that takes no room on the disk."""
    empty(path)
    os.truncate(path, 2**40)


def exchanged(path: Path) -> None:
    """The content of the last other file of its kind, and that one's here."""
    other = max(path.parent.glob(f"*{path.suffix}"))
    ours, theirs = path.read_bytes(), other.read_bytes()
    assert ours != theirs
    content(theirs)(path)
    content(ours)(other)


def column(edit: Callable[[np.ndarray], Any], *, seal: bool = False) -> Harm:
    """Other values of a column of `train/web`; with `seal`, the manifest has their checksum."""

    def work(path: Path) -> None:
        store = open_store(path.parent)
        sha256 = zarr.write(store, path.name, edit(store.read_array(path.name)))
        if seal:
            change = set_value("sources", "train/web", "checksums", path.name, to=sha256)
            sealed(change)(path.parents[3] / "dataset.json")

    return work


WEB, FIRST = "train/web/index", "train/web/00000-00000.array_record"
LENGTH, ANCHOR = f"{WEB}/length", f"{WEB}/anchor"
DESCRIPTION, CHUNK = f"{LENGTH}/zarr.json", f"{LENGTH}/c/0"
PIPE = "is a device or a pipe, not a plain file: the dataset is damaged, or made to do harm"
DIFFERS = "its content differs from its checksum"
OTHERS = "the index of train/web is not what was written: jaxdata verify {d} names what is damaged"
AT = "{d}: the index of train/web is damaged at document "
DAMAGED = f"{{d}}/{DESCRIPTION} is damaged ("
HUGE = "has 1,099,511,627,776 bytes, expected at most"
AGAIN = (
    " is damaged, or of another version of jaxdata: delete it and run the same command again, "
    "which repeats that part of the work"
)
RECEIPT = "train/web/work/00000-00000.receipt"


SMALL_ROWS = [
    Row("dataset.json", sparse, f"{{d}}/dataset.json {HUGE} 1,073,741,824: it is not"),
    named("dataset.json", said(b'"inputs": [', b'"inputs": ["other", '),
          "dataset.json differs from its checksum: restore it from a copy"),
    Row(FIRST, replaced(lambda path: path.symlink_to(np.__file__)), f"{{d}}/{FIRST}",
        "it has  … bytes, not 131,072"),
    Row(FIRST, cut, "ends before byte 131072: the file", "it has 131,071 bytes, not 131,072"),
    Row(FIRST, grown, NOTHING, "it has more than 131,072 bytes"),
    Row(FIRST, gone, "is missing: the dataset is incomplete", "is missing"),
    Row(FIRST, exchanged, "its records are not those in the index of train/web; "
        "jaxdata verify {d} names what is", DIFFERS),
    named(CHUNK, pipe, f"{{d}}/{CHUNK} {PIPE}"),
    named(CHUNK, gone, f"{CHUNK} is missing: the dataset is incomplete"),
    named(LENGTH, column(lambda _: np.full(100_000, 7, np.uint32)),
          f"{{d}}/{LENGTH} has 100,000 entries, not 20: restore it from a copy, or convert the"),
    Row(LENGTH, column(lambda was: was * 0), OTHERS, DIFFERS),
    Row(f"{WEB}/origin_file", column(lambda was: was + 9), AT + "0 (IndexError('list index out of ",
        DIFFERS),
    Row(ANCHOR, column(lambda _: np.array([2**61, 0, 0], np.uint64), seal=True), AT),
    named(DESCRIPTION, content(b"[" * 60_000), DAMAGED + "RecursionError("),
    named(DESCRIPTION, said(b'"shape":[20]', b'"shape":[1125899906842624]'),
          DAMAGED + "ValueError('1125899906842624 entries in chunks of 20')"),
    named(DESCRIPTION, said(b"uint32", b"object"), DAMAGED + "KeyError('object')"),
]  # fmt: skip
DATASET_ROWS = [
    Row("tokenizer/tokenizer.json", flip, "/tokenizer/tokenizer.json ", DIFFERS),
    Row("train/sft/views/d1/*/reason/c/0", flip, "view 'd1' of train/sft is damaged: its columns "
        "name no reason, or no source; jaxdata veri", DIFFERS),
    Row("train/web/index-1/kept/c/0", changed(lambda was: b"\x80" * len(was)),
        "the index of train/web is … jaxdata verify", DIFFERS),
    Row("plans/*.npy", flip, NOTHING),
    Row("plans/*.npy", exchanged, NOTHING),
]  # fmt: skip
ROWS_ROWS = [
    Row("0*", empty, "cannot be read: it has 0 bytes, not 131,072. Restore the file, or",
        "it has 0"),
    Row("rows.json", sealed(lambda fields: fields["fields"][0][2].__setitem__(0, 17)),
        ".array_record: record 0 is no row of rows.json ( … ; jaxdata verify {d} names what is d"),
    Row("rows.json", sealed(set_value("record_format", to="pickle")),
        "{d} has records of the format 'pickle'; this jaxdata reads plain and tf_example: install "
        "the jaxdata that wrote it"),
]  # fmt: skip
CONVERSION_ROWS = [
    Row(RECEIPT, content(with_checksum(b"{}")), f"/{RECEIPT}{AGAIN}"),
    Row(RECEIPT, flip, f"/{RECEIPT}{AGAIN}"),
    Row(RECEIPT, exchanged, f"/{RECEIPT}{AGAIN}"),
    Row(RECEIPT, gone, NOTHING),
]
STATE, SUMS = "checkpoints/16/state", "checksums/16.json"
NEWEST = "the checkpoint {d}/checkpoints/16 is damaged: its file "
CHECKPOINT_ROWS = [
    Row(STATE, flip, NEWEST + "state is not as it was written. Restore it, or move"),
    Row(STATE, gone, NEWEST + "state is missing … to go on from step 8"),
    Row("checkpoints/8/state", flip, NOTHING),
    *(Row(SUMS, content(text), NOTHING) for text in (b"", b"[]", b"[" * 10**5)),
]
TABLE = {"small": SMALL_ROWS, "dataset": DATASET_ROWS, "rows": ROWS_ROWS}
TABLE |= {"conversion": CONVERSION_ROWS, "checkpoints": CHECKPOINT_ROWS}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """A whole folder of a kind, and what is read of it."""
    root, made = tmp_path_factory.mktemp("whole"), {}

    def of(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            KINDS[kind].make(root / kind)
            with copied(root / kind) as copy:
                made[kind] = root / kind, KINDS[kind].read(copy)
        return made[kind]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXDATA_CACHE", str(root / "cache"))
        yield of


@pytest.mark.parametrize(
    ("kind", "row"), [(kind, row) for kind, rows in TABLE.items() for row in rows]
)
def test_damage_is_named(
    kind: str, row: Row, whole: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read for ever, and a stranger's numbers do not become large arrays."""
    monkeypatch.setattr(index, "_CHUNK_DOCUMENTS", 16)  # compared piece by piece
    monkeypatch.setattr(local, "_SCAN_BYTES", 5_000)
    path, written = whole(kind)
    specimen = KINDS[kind]
    with copied(path) as copy, nullcontext() if kind == "dataset" else little_memory():
        file = min(copy.glob(row.file))
        row.harm(file)
        looked = _error_of(specimen.look, copy)
        found: Any = None
        try:
            found = specimen.read(copy)
        except DatasetError as error:
            told = str(error)
        else:
            told = ""
    if row.read is None:
        assert told == ""
        assert row.look == DIFFERS or found == written
    else:
        assert _says(row.read.format(d=copy), told), told
    if row.look is None:
        assert not looked or file.name in ("dataset.json",)
    else:
        first = looked.partition("\n")[0]  # the others follow from it, in older datasets
        assert _says(row.look.format(d=copy), first), looked
        assert part_of(file.relative_to(copy).as_posix()) in first


def _error_of(call: Callable[[Path], str], copy: Path) -> str:
    try:
        return call(copy)
    except DatasetError as error:
        return str(error)


def _says(expected: str, text: str) -> bool:
    """Whether the parts of what is expected come in a text, in their order."""
    at = 0
    for part in expected.split(" … "):
        if (at := text.find(part.strip() if " … " in expected else part, at)) < 0:
            return False
    return True


@pytest.mark.parametrize(
    ("harm", "left"), [(flip, "plans/.*npy"), (gone, r"plans/.*|.*inputs(-\d+)?.json")]
)
def test_every_file_is_named_once(whole: Callable[[str], Any], harm: Harm, left: str) -> None:
    """All at once, but what describes them; also of a kind that is in no table."""
    for kind, look in (("dataset", verify), ("rows", verify_rows)):
        with copied(whole(kind)[0]) as copy:
            names = [name for name in files_of(copy) if name not in ("dataset.json", "rows.json")]
            for name in names:
                harm(copy / name)
            found = sorted(one.file for one in look(copy).damage)
        assert found == sorted(n for n in {*map(part_of, names)} if not re.fullmatch(left, n))
