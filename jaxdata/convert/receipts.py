"""What a finished unit leaves behind, last: its commit, and all that the index is made from."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.format.manifest import ShardEntry
from jaxdata.format.members import Member
from jaxdata.format.storage import sealed, unsealed

__all__ = ["Members", "OutputReceipt", "Quarantined", "Receipt"]

Members = dict[int, list[tuple[int, Member]]]
"""Of parts that lie in archives, where files of these begin or go on: the number of a record in the
part, and which record of which file it is."""


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
class OutputReceipt:
    """What a unit wrote to one output, a source of a split.

    Attributes:
        shard: the file that holds the documents.
        lengths: uint32 (documents,), tokens of each document with EOD.
        part: uint32 (documents,), the part each document came from.
        record: uint32 (documents,), its number in that part, from 0.
        kept: a line of JSON a document with the fields to keep; empty where none are.
        counts: statistics that add up over units.
    """

    shard: ShardEntry
    lengths: NDArray[np.uint32]
    part: NDArray[np.uint32]
    record: NDArray[np.uint32]
    kept: bytes = b""
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Receipt:
    """The receipt of one unit.

    Attributes:
        records: records of each part, blank lines included: with those of the units before, they
            turn numbers in a part into numbers in a file.
        outputs: what was written, by `"<split>/<source>"`; only what got a document.
        quarantined: the bad records, in order.
        dropped: records and documents left out on purpose, by reason.
        counts: statistics that add up over units: "blank" lines, "added" by records that became
            several documents, and so on. Over all outputs of one stream, documents + quarantined +
            dropped + blank = records + added.
        members: where files of archives were met.
    """

    records: list[int]
    outputs: dict[str, OutputReceipt]
    quarantined: list[Quarantined]
    dropped: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    members: Members = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return its bytes: a line of JSON, the columns of each output, and a checksum."""
        header = {
            "records": self.records,
            "outputs": {name: _header(output) for name, output in self.outputs.items()},
            "quarantined": [_encode_quarantined(one) for one in self.quarantined],
            "dropped": self.dropped,
            "counts": self.counts,
            "members": list(self.members.items()),
        }
        columns = [_columns(output) for output in self.outputs.values()]
        return sealed(b"".join([json.dumps(header).encode(), b"\n", *columns]))

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Read a receipt; raises ValueError where it is not as it was written."""
        content = unsealed(data)
        if content is None:
            raise ValueError("a receipt differs from its checksum")
        file = io.BytesIO(content)
        header = json.loads(file.readline())
        return cls(
            records=header["records"],
            outputs={name: _output(fields, file) for name, fields in header["outputs"].items()},
            quarantined=[_decode_quarantined(one) for one in header["quarantined"]],
            dropped=Counter(header["dropped"]),
            counts=Counter(header["counts"]),
            members={
                part: [(record, Member(*member)) for record, member in starts]
                for part, starts in header["members"]
            },
        )


def _header(output: OutputReceipt) -> dict[str, Any]:
    shard = output.shard.model_dump()
    return {"shard": shard, "kept_bytes": len(output.kept), "counts": output.counts}


def _columns(output: OutputReceipt) -> bytes:
    columns = np.stack([output.lengths, output.part, output.record]).astype("<u4")
    return columns.tobytes() + output.kept


def _output(fields: dict[str, Any], file: io.BytesIO) -> OutputReceipt:
    shard = ShardEntry(**fields["shard"])
    columns = np.frombuffer(file.read(3 * 4 * shard.documents), "<u4")
    lengths, part, record = columns.reshape(3, -1)
    kept = file.read(fields["kept_bytes"])
    return OutputReceipt(shard, lengths, part, record, kept, Counter(fields["counts"]))


def _encode_quarantined(one: Quarantined) -> dict[str, Any]:
    # latin-1 is a bijection between bytes and the first 256 characters.
    return asdict(one) | {"raw": None if one.raw is None else one.raw.decode("latin-1")}


def _decode_quarantined(fields: dict[str, Any]) -> Quarantined:
    raw = fields["raw"]
    return Quarantined(
        **fields
        | {"raw": None if raw is None else raw.encode("latin-1"), "keys": tuple(fields["keys"])}
    )
