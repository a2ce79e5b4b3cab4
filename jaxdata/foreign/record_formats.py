"""How a row becomes a record, and a record a row again: plain arrays, or `tf.train.Example`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.foreign.row_manifest import Field
from jaxdata.rows.table import Batch


class RecordFormat(NamedTuple):
    """One way to write rows as records."""

    encode: Callable[[Batch, Sequence[Field]], Iterator[bytes]]
    """The records of a batch, one a row."""
    decode: Callable[[bytes, Sequence[Field]], Batch]
    """The row of a record."""


def fields_of(batch: Batch) -> list[Field]:
    """Names, dtypes and shapes of the arrays of a row, little-endian.

    Constants of a batch belong to no row, and are not written.

    Raises:
        InputError: a layout made something else than one row, by names, of a batch of one.
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
    return [
        (name, array.dtype.newbyteorder("<").str, array.shape[1:]) for name, array in arrays.items()
    ]


def check_holds(record_format: str, fields: Sequence[Field]) -> None:
    """Refuse arrays that a record would hold rounded."""
    for name, dtype, _ in fields:
        if record_format == "tf_example" and dtype in ("<f8", "<u8"):
            raise InputError(
                f"record_format='tf_example' holds floats of 32 bits and whole numbers of 63, and "
                f"{name!r} is {np.dtype(dtype).name}: use record_format='plain', or leave it out"
            )


def row_bytes(fields: Sequence[Field]) -> int:
    """Bytes of the arrays of a row."""
    return row_dtype(fields).itemsize


def row_dtype(fields: Sequence[Field]) -> np.dtype[Any]:
    """The structured dtype of a row, without padding."""
    return np.dtype([(name, dtype, tuple(shape)) for name, dtype, shape in fields])


def native(array: NDArray[Any]) -> NDArray[Any]:
    """An array in the byte order of this machine."""
    return np.asarray(array, array.dtype.newbyteorder("="))


def _encode_plain(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
    rows = np.empty(len(batch[fields[0][0]]), row_dtype(fields))
    for name, _, _ in fields:
        rows[name] = batch[name]
    return (row.tobytes() for row in rows)


def _decode_plain(record: bytes, fields: Sequence[Field]) -> Batch:
    (row,) = np.frombuffer(bytearray(record), row_dtype(fields))
    return {name: native(row[name]) for name, _, _ in fields}


def _encode_example(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
    for number in range(len(batch[fields[0][0]])):
        row = {name: batch[name][number] for name, _, _ in fields}
        yield encode_example(row | _column_of_maxtext(row))


def _column_of_maxtext(row: Batch) -> Batch:
    """The tokens of a row in MaxText's layout as it reads them: one column, without padding.

    MaxText makes inputs, targets and padding of that; it deletes a column called `inputs`.
    """
    if "inputs_segmentation" not in row:
        return {}
    return {"text": row["inputs"][row["inputs_segmentation"] > 0]}


def _decode_example(record: bytes, fields: Sequence[Field]) -> Batch:
    row = decode_example(record)
    return {name: native(row[name].astype(dtype).reshape(shape)) for name, dtype, shape in fields}


def encode_example(row: dict[str, NDArray[Any]]) -> bytes:
    """The serialized Example of named arrays: integers as int64 lists, others as float lists.

    The same arrays give the same bytes.

    >>> data = encode_example({"inputs": np.array([5, 300], np.int32)})
    >>> decode_example(data)["inputs"].tolist()
    [5, 300]
    """
    example = _example()()
    features = example.features.feature
    for name, array in row.items():
        if array.dtype.kind == "f":
            features[name].float_list.value.extend(array.ravel().tolist())
        else:
            features[name].int64_list.value.extend(array.ravel().astype(np.int64).tolist())
    data: bytes = example.SerializeToString(deterministic=True)  # maps have no order otherwise
    return data


def decode_example(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an Example, flat: int64 or float32; raises ValueError if it is none."""
    from google.protobuf.message import DecodeError

    try:
        example = _example().FromString(data)
    except DecodeError as error:
        raise ValueError(f"no Example: {error}") from error
    return {name: _values(feature) for name, feature in example.features.feature.items()}


def _values(feature: Any) -> NDArray[Any]:
    if feature.WhichOneof("kind") == "float_list":
        return np.asarray(feature.float_list.value, np.float32)
    return np.asarray(feature.int64_list.value, np.int64)


@cache
def _example() -> Any:
    """The class of an Example, in a pool of our own: the default one may hold TensorFlow's."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("jaxdata.Example"))


_MESSAGES = """
name: "jaxdata/example.proto" package: "jaxdata" syntax: "proto3"
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL oneof_index: 0
    type: TYPE_MESSAGE type_name: ".jaxdata.FloatList" }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL oneof_index: 0
    type: TYPE_MESSAGE type_name: ".jaxdata.Int64List" } }
message_type { name: "Features"
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL
      type: TYPE_MESSAGE type_name: ".jaxdata.Feature" } }
  field { name: "feature" number: 1 label: LABEL_REPEATED
    type: TYPE_MESSAGE type_name: ".jaxdata.Features.FeatureEntry" } }
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL
    type: TYPE_MESSAGE type_name: ".jaxdata.Features" } }
"""

RECORD_FORMATS = {
    "plain": RecordFormat(_encode_plain, _decode_plain),
    "tf_example": RecordFormat(_encode_example, _decode_example),
}
