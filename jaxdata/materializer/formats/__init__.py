"""How rows become records: one file for each record format, and this registry of them."""

from __future__ import annotations

from jaxdata.materializer.formats import plain, tf_example
from jaxdata.materializer.formats.contract import RecordFormat, fields_of, row_bytes

__all__ = ["RECORD_FORMATS", "RecordFormat", "fields_of", "row_bytes"]

RECORD_FORMATS: dict[str, RecordFormat] = {"plain": plain.FORMAT, "tf_example": tf_example.FORMAT}
