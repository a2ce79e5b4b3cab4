"""`tf.train.Example` records without TensorFlow: protobuf makes the messages described here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.materializer.formats.contract import RecordFormat, native, rows_in
from jaxdata.materializer.row_manifest import Field
from jaxdata.rows.table import Batch


def _encode(batch: Batch, fields: Sequence[Field]) -> Iterator[bytes]:
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


def _decode(record: bytes, fields: Sequence[Field]) -> Batch:
    row = decode_example(record)
    return {name: native(row[name].astype(dtype).reshape(shape)) for name, dtype, shape in fields}


FORMAT = RecordFormat(_encode, _decode)


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
