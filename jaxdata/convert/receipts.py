"""What a finished unit leaves behind, last: its commit, and all that the index is made from."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.manifest import ShardEntry

__all__ = ["Quarantined", "Receipt"]


@dataclass(frozen=True)
class Quarantined:
    """A record without a usable text.

    Attributes:
        part: number of its part in the unit.
        record: its number in the part, from 0.
        reason: why.
        raw: what stood there; None where a table has a null.
        keys: the keys of an object that lacks the text key, else empty.
    """

    part: int
    record: int
    reason: str
    raw: bytes | None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Receipt:
    """The receipt of one unit.

    Attributes:
        records: records of each part, blank lines included: with those of the units before, they
            turn numbers in a part into numbers in a file.
        lengths: uint32 (documents,), tokens of each document with EOD.
        part: uint32 (documents,), the part each document came from.
        record: uint32 (documents,), its number in that part, from 0.
        text_bytes: UTF-8 bytes of all documents.
        quarantined: the bad records, in order.
        shard: the file that holds the documents, None where there are none.
    """

    records: list[int]
    lengths: NDArray[np.uint32]
    part: NDArray[np.uint32]
    record: NDArray[np.uint32]
    text_bytes: int
    quarantined: list[Quarantined]
    shard: ShardEntry | None

    def encode(self) -> bytes:
        """Return the bytes of the receipt: a line of JSON, then the three columns."""
        header = {
            "records": self.records,
            "text_bytes": self.text_bytes,
            "quarantined": [_encode_quarantined(one) for one in self.quarantined],
            "shard": self.shard and self.shard.model_dump(),
        }
        columns = np.stack([self.lengths, self.part, self.record]).astype("<u4")
        return json.dumps(header).encode() + b"\n" + columns.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Read a receipt."""
        file = io.BytesIO(data)
        header = json.loads(file.readline())
        columns = np.frombuffer(file.read(), "<u4").reshape(3, -1)
        return cls(
            records=header["records"],
            lengths=columns[0],
            part=columns[1],
            record=columns[2],
            text_bytes=header["text_bytes"],
            quarantined=[_decode_quarantined(one) for one in header["quarantined"]],
            shard=header["shard"] and ShardEntry(**header["shard"]),
        )


def _encode_quarantined(one: Quarantined) -> dict[str, Any]:
    # latin-1 is a bijection between bytes and the first 256 characters.
    return asdict(one) | {"raw": None if one.raw is None else one.raw.decode("latin-1")}


def _decode_quarantined(fields: dict[str, Any]) -> Quarantined:
    raw = fields["raw"]
    return Quarantined(
        **fields
        | {"raw": None if raw is None else raw.encode("latin-1"), "keys": tuple(fields["keys"])}
    )
