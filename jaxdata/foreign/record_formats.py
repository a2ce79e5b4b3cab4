"""What lies in a folder of materialized rows: `rows.json`, and records of a format.

A row becomes a record, and a record a row again, as plain arrays or as a `tf.train.Example`.
`rows.json` says which rows they are, and is written last, as their commit.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, model_validator

from jaxdata.base.errors import DatasetError, InputError, differences, itemized
from jaxdata.dataset.manifest import Count, Entry, Facts, FileName, Positive, read_json
from jaxdata.rows.table import Batch
from jaxdata.storage import Store

ROWS = "rows.json"
BATCH_KEY = "batch_key"
"""uint64 (rows,): see `jaxdata.rows.table`"""
VERSION = 1
_ROW_BYTES = 2**31

Field = tuple[str, str, tuple[Count, ...]]
"""(name, dtype, shape) of one array of a row, as `numpy.dtype([…])` takes them."""


def row_dtype(fields: Sequence[Field]) -> np.dtype[Any]:
    """The structured dtype of a row, without padding."""
    return np.dtype([(name, dtype, tuple(shape)) for name, dtype, shape in fields])


def _plain(fields: list[Field]) -> list[Field]:
    """Refuse arrays of objects, and rows that nothing could hold."""
    for name, dtype, _ in fields:
        if not re.fullmatch(r"[<>=|]?[A-Za-z]\w{0,15}", dtype):  # numpy parses much more
            raise ValueError(f"the array {name} is of {dtype!r}, which is no dtype")
    row = row_dtype(fields)
    if row.hasobject or not 0 < row.itemsize < _ROW_BYTES:
        raise ValueError(f"a row of these arrays has {row.itemsize:,} bytes, or objects")
    return fields


class RowShard(Entry):
    """One ArrayRecord file of rows."""

    name: FileName
    rows: Count
    trained_tokens: Count | None
    """Targets with loss; None if the rows have no `loss_mask`."""
    bytes: Count
    sha256: str


class Recipe(Entry):
    """Everything that decides the bytes of a set of rows; the number of workers does not."""

    format: Literal["jaxdata rows"] = "jaxdata rows"
    version: int = VERSION
    record_format: str
    layout: str
    fields: Annotated[list[Field], AfterValidator(_plain)]
    """The arrays of a row, in the order of a plain record."""
    first_row: Count
    stop_row: Count
    skip_rows: list[tuple[Count, Count]]
    rows: Positive
    """Rows of `[first_row, stop_row)` that are not skipped."""
    shard_rows: Positive
    run: Facts
    """The named facts that determine every row, as in a loader's state."""
    lanes: Positive = 1
    """Most lanes of a source; if there are several, `BATCH_KEY` sorts the rows of a batch."""

    @property
    def shard_names(self) -> list[str]:
        """The files, in the order of their rows; the number of each is that in its name."""
        count = -(-self.rows // self.shard_rows)
        digits = max(5, len(str(count)))
        return [f"{k:0{digits}}-of-{count:0{digits}}.array_record" for k in range(count)]

    def changes(self, now: "Recipe") -> list[str]:
        """The differences to another recipe, a line each."""
        kept = set(Recipe.model_fields)
        was, is_ = (itemized(each.model_dump(mode="json", include=kept)) for each in (self, now))
        return [*differences(was, is_).values()]


class RowSet(Recipe):
    """The whole of `rows.json`."""

    shards: list[RowShard]
    batch_key: str | None = None
    """The sha256 of `BATCH_KEY`, if there is one."""

    @model_validator(mode="after")
    def _covers_rows(self) -> "RowSet":
        """All shards but the last are full."""
        last = len(self.shards) - 1
        rest = self.rows - last * self.shard_rows
        expected = [self.shard_rows] * last + [rest]
        if not 0 < rest <= self.shard_rows or [shard.rows for shard in self.shards] != expected:
            raise ValueError(f"its shards do not hold {self.rows:,} rows, {self.shard_rows:,} each")
        return self

    @property
    def trained_tokens(self) -> int | None:
        """Targets with loss in all rows."""
        known = [shard.trained_tokens for shard in self.shards if shard.trained_tokens is not None]
        return sum(known) if len(known) == len(self.shards) else None


def read_rowset(store: Store) -> RowSet:
    """The content of a folder of rows; raises DatasetError if it is missing or damaged."""
    rowset = read_json(store, ROWS, RowSet, VERSION)
    if rowset is None:
        raise DatasetError(
            f"{store.url} holds no finished rows: it has no {ROWS}. If jaxdata export was "
            "interrupted, the same command finishes it"
        )
    return rowset


class RecordFormat(NamedTuple):
    """One way to write rows as records."""

    encode: Callable[[Batch, Sequence[Field]], Iterator[bytes]]
    """The records of a batch, one a row."""
    decode: Callable[[bytes, Sequence[Field]], Batch]
    """The row of a record."""


def fields_of(batch: Batch, record_format: str) -> list[Field]:
    """Names, dtypes and shapes of the arrays of a row, little-endian.

    Constants of a batch belong to no row, and are not written.

    Raises:
        InputError: a layout made something else than one row, by names, of a batch of one; or a
            record of this format would hold it rounded.
    """
    named = isinstance(batch, dict)
    arrays = {name: array for name, array in batch.items() if np.ndim(array)} if named else {}
    for name, array in arrays.items() or [("", None)]:
        if array is None or len(array) != 1:
            what = f"{name!r} of shape {array.shape}" if array is not None else type(batch).__name__
            raise InputError(
                f"rows cannot be written in this layout: of one row it makes {what}, expected a "
                "dict of arrays with that row alone"
            )
        if record_format == "tf_example" and array.dtype.str[1:] in ("f8", "u8"):
            raise InputError(
                "record_format='tf_example' holds floats of 32 bits and whole numbers of 63, and "
                f"{name!r} is {array.dtype.name}: use record_format='plain', or leave it out"
            )
    return [(name, one.dtype.newbyteorder("<").str, one.shape[1:]) for name, one in arrays.items()]


def _native(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array, array.dtype.newbyteorder("="))


def _encode_plain(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
    rows = np.empty(len(batch[fields[0][0]]), row_dtype(fields))
    for name, _, _ in fields:
        rows[name] = batch[name]
    return (row.tobytes() for row in rows)


def _decode_plain(record: bytes, fields: Sequence[Field]) -> Batch:
    (row,) = np.frombuffer(bytearray(record), row_dtype(fields))
    return {name: _native(row[name]) for name, _, _ in fields}


def _encode_example(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
    """Integers are int64 lists, others float lists; the same arrays give the same bytes."""
    for number in range(len(batch[fields[0][0]])):
        row = {name: batch[name][number] for name, _, _ in fields}
        if "inputs_segmentation" in row:
            # MaxText reads tokens as one column without padding, makes inputs, targets and padding
            # of that, and deletes a column called `inputs`.
            row["text"] = row["inputs"][row["inputs_segmentation"] > 0]
        example = _example()()
        for name, array in row.items():
            feature = example.features.feature[name]
            if array.dtype.kind == "f":
                feature.float_list.value.extend(array.ravel().tolist())
            else:
                feature.int64_list.value.extend(array.ravel().astype(np.int64).tolist())
        yield example.SerializeToString(deterministic=True)  # maps have no order otherwise


def _decode_example(record: bytes, fields: Sequence[Field]) -> Batch:
    from google.protobuf.message import DecodeError

    try:
        features = _example().FromString(record).features.feature
    except DecodeError as error:
        raise ValueError(f"no Example: {error}") from error
    row = {}
    for name, dtype, shape in fields:
        floats = features[name].WhichOneof("kind") == "float_list"
        values = features[name].float_list if floats else features[name].int64_list
        array = np.asarray(values.value, np.float32 if floats else np.int64)
        row[name] = _native(array.astype(dtype).reshape(shape))
    return row


@cache
def _example() -> Any:
    """The class of an Example, in a pool of our own: the default one may hold TensorFlow's."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    messages = Path(__file__).with_name("example.textproto").read_text(encoding="utf-8")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(messages, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("jaxdata.Example"))


RECORD_FORMATS = {
    "plain": RecordFormat(_encode_plain, _decode_plain),
    "tf_example": RecordFormat(_encode_example, _decode_example),
}
