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


def row_bytes(fields: Sequence[Field]) -> int:
    """Bytes of the arrays of a row."""
    return row_dtype(fields).itemsize


def row_dtype(fields: Sequence[Field]) -> np.dtype[Any]:
    """The structured dtype of a row, without padding."""
    return np.dtype([(name, dtype, tuple(shape)) for name, dtype, shape in fields])


def rows_in(batch: Batch) -> int:
    """Rows of a batch."""
    return len(next(iter(batch.values())))


def native(array: NDArray[Any]) -> NDArray[Any]:
    """An array in the byte order of this machine."""
    return np.asarray(array, array.dtype.newbyteorder("="))


def _encode_plain(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
    rows = np.empty(rows_in(batch), row_dtype(fields))
    for name, _, _ in fields:
        rows[name] = batch[name]
    return (row.tobytes() for row in rows)


def _decode_plain(record: bytes, fields: Sequence[Field]) -> Batch:
    (row,) = np.frombuffer(bytearray(record), row_dtype(fields))
    return {name: native(row[name]) for name, _, _ in fields}


PLAIN = RecordFormat(_encode_plain, _decode_plain)


def _encode_example(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
    for number in range(rows_in(batch)):
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


TF_EXAMPLE = RecordFormat(_encode_example, _decode_example)


def encode_example(row: dict[str, NDArray[Any]]) -> bytes:
    """The serialized Example of named arrays: integers as int64 lists, others as float lists.

    The same arrays give the same bytes.

    >>> data = encode_example({"inputs": np.array([5, 300], np.int32)})
    >>> decode_example(data)["inputs"].tolist()
    [5, 300]
    """
    example = _message("Example")()
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
        example = _message("Example").FromString(data)
    except DecodeError as error:
        raise ValueError(f"no Example: {error}") from error
    return {name: _values(feature) for name, feature in example.features.feature.items()}


def _values(feature: Any) -> NDArray[Any]:
    if feature.WhichOneof("kind") == "float_list":
        return np.asarray(feature.float_list.value, np.float32)
    return np.asarray(feature.int64_list.value, np.int64)


@cache
def _message(name: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"jaxdata.{name}"))


@cache
def _pool() -> Any:
    """A pool of our own: the default one holds TensorFlow's messages if that is imported."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="jaxdata/example.proto", package="jaxdata", syntax="proto3"
    )
    repeated, optional = proto.LABEL_REPEATED, proto.LABEL_OPTIONAL
    for name, kind in (("FloatList", proto.TYPE_FLOAT), ("Int64List", proto.TYPE_INT64)):
        _field(file.message_type.add(name=name), "value", 1, repeated, kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in ((2, "FloatList"), (3, "Int64List")):
        kind = f"{name.removesuffix('List').lower()}_list"
        _field(feature, kind, number, optional, name).oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, optional, proto.TYPE_STRING)
    _field(entry, "value", 2, optional, "Feature")
    _field(features, "feature", 1, repeated, "Features.FeatureEntry")
    _field(file.message_type.add(name="Example"), "features", 1, optional, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _field(message: Any, name: str, number: int, label: Any, kind: Any) -> Any:
    """Add a field of a plain type, or of the message that `kind` names."""
    field = message.field.add(name=name, number=number, label=label)
    if isinstance(kind, str):
        field.type, field.type_name = field.TYPE_MESSAGE, f".jaxdata.{kind}"
    else:
        field.type = kind
    return field


__all__ = ["RECORD_FORMATS", "RecordFormat", "fields_of", "row_bytes"]

RECORD_FORMATS: dict[str, RecordFormat] = {"plain": PLAIN, "tf_example": TF_EXAMPLE}
