"""Receipts: the commit of a unit, and all that the index is made from."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from jaxdata.format.archive_members import Member
from jaxdata.format.bounds import Count
from jaxdata.format.checksums import checked_bytes, with_checksum
from jaxdata.format.index import HASH_COLUMNS
from jaxdata.format.manifest import ShardEntry
from jaxdata.format.page_checksums import page_count

Members = dict[int, list[tuple[int, Member]]]
"""For parts of archives: where files of the archive begin or continue, as the number of a record in
the part, and which record of which file it is."""


_NUMBERS: TypeAdapter[Any] = TypeAdapter(
    tuple[
        list[Count],
        list[dict[str, Count]],
        list[tuple[Count, Count, str]],
        dict[Count, list[tuple[Count, tuple[str, str, Count]]]],
    ]
)
"""Records of parts; counts; places and reasons of bad records; members."""
_HASHES: TypeAdapter[tuple[list[str], str]] = TypeAdapter(tuple[list[str], str])
"""Contents of parts; stamp."""
_ENCODED: TypeAdapter[tuple[str, dict[str, int]]] = TypeAdapter(tuple[str, dict[str, int]])
"""Encoder; what it counted."""


@dataclass(frozen=True)
class Quarantined:
    """A record without a usable text."""

    part: int  # its number in the unit
    record: int  # its number in the part, from 0
    reason: str
    raw: bytes | None  # None for a null in a table
    keys: tuple[str, ...] = ()  # of an object that lacks the text key


class SideReceipt(NamedTuple):
    """What a unit wrote of a side array."""

    shard: ShardEntry
    pages: NDArray[np.uint32]
    """checksums of the shard's pages"""


@dataclass(frozen=True)
class OutputReceipt:
    """What a unit wrote to one output, that is a source of a split.

    Attributes:
        shard: the file that holds the documents.
        lengths: uint32 (documents,), tokens of each document with EOD.
        part: uint32 (documents,), the part each document came from.
        record: uint32 (documents,), its record's number in that part, from 0.
        pages: uint32 (pages,), checksums of the shard's pages; none if an earlier jaxdata wrote it.
        kept: a line of JSON for each document with the fields to keep; empty if there are none.
        counts: statistics that add up over units.
        sides: the shards of side arrays, by name.
        hashes: uint64 (documents, n), the columns of `HASH_COLUMNS` that are kept.
    """

    shard: ShardEntry
    lengths: NDArray[np.uint32]
    part: NDArray[np.uint32]
    record: NDArray[np.uint32]
    pages: NDArray[np.uint32]
    kept: bytes = b""
    counts: Counter[str] = field(default_factory=Counter)
    sides: dict[str, SideReceipt] = field(default_factory=dict)
    hashes: dict[str, NDArray[np.uint64]] = field(default_factory=dict)


@dataclass(frozen=True)
class Receipt:
    """The receipt of one unit.

    Attributes:
        records: records of each part, blank lines included. With those of earlier units they turn
            numbers in a part into numbers in a file.
        outputs: what was written, by `"<split>/<source>"`; only outputs with documents.
        quarantined: the bad records, in order.
        dropped: records and documents left out on purpose, by reason.
        counts: statistics that add up over units: "blank" lines, "added" by records that became
            several documents, and so on. Over all outputs of one stream, documents + quarantined +
            dropped + blank = records + added.
        members: where files of archives begin.
        contents: the hash of each part's records; empty if an earlier jaxdata wrote the receipt.
        stamp: of the unit's files before they were read, see `identity.stamp_of`.
        encoder: what encoded the texts, "fastokens 0.3.5"; "" for the tokenizer's own library.
        encoding: what the encoder counted.
    """

    records: list[int]
    outputs: dict[str, OutputReceipt]
    quarantined: list[Quarantined]
    dropped: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    members: Members = field(default_factory=dict)
    contents: list[str] = field(default_factory=list)
    stamp: str = ""
    encoder: str = ""
    encoding: Counter[str] = field(default_factory=Counter)

    def encode(self) -> bytes:
        """Its bytes: a line of JSON, the columns of each output, and a checksum."""
        header = {
            "records": self.records,
            "outputs": {name: _header(output) for name, output in self.outputs.items()},
            "quarantined": [_encode_quarantined(one) for one in self.quarantined],
            "dropped": self.dropped,
            "counts": self.counts,
            "members": list(self.members.items()),
            "contents": self.contents,
            "stamp": self.stamp,
            "encoder": self.encoder,
            "encoding": self.encoding,
        }
        columns = [_columns(output) for output in self.outputs.values()]
        return with_checksum(b"".join([json.dumps(header).encode(), b"\n", *columns]))

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Read a receipt; raises ValueError if it differs from what was written."""
        content = checked_bytes(data)
        if content is None:
            raise ValueError("a receipt differs from its checksum")
        file = io.BytesIO(content)
        header = json.loads(file.readline())
        hashes = header.get("contents", []), header.get("stamp", "")
        contents, stamp = _HASHES.validate_python(hashes, strict=True)
        encoded = header.get("encoder", ""), header.get("encoding", {})
        encoder, encoding = _ENCODED.validate_python(encoded, strict=True)
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
            contents=contents,
            stamp=stamp,
            encoder=encoder,
            encoding=Counter(encoding),
        )

    def check(
        self,
        parts: int,
        outputs: Mapping[str, Collection[str]],
        sides: Collection[str] = (),
    ) -> None:
        """Raise ValueError unless it can be of a unit of so many parts that feeds these outputs.

        `outputs` have the columns of hashes of each, `sides` are the side arrays of all.
        """
        counts = [self.dropped, self.counts, *(wrote.counts for wrote in self.outputs.values())]
        bad = [(one.part, one.record, one.reason) for one in self.quarantined]
        _NUMBERS.validate_python((self.records, counts, bad, self.members))
        places = [one.part for one in self.quarantined] + list(self.members)
        for name, wrote in self.outputs.items():
            places.append(int(wrote.part.max(initial=0)))
            shard, lengths = wrote.shard, wrote.lengths
            if name not in outputs or shard.name.rpartition("/")[0] != name:
                raise ValueError(f"it wrote {shard.name} for {name}")
            if shard.tokens != int(lengths.sum(dtype=np.int64)) or not lengths.all():
                raise ValueError(f"its lengths are not those of {shard.tokens} tokens")
            if len(wrote.pages) not in (0, page_count([shard])):
                raise ValueError(f"it has checksums of {len(wrote.pages)} pages of {shard.name}")
            if wrote.sides.keys() != {*sides}:
                raise ValueError(f"it has the side arrays {', '.join(wrote.sides)}")
            for side in wrote.sides.values():
                _check_beside(shard, side)
            if wrote.hashes.keys() != {*outputs[name]}:
                raise ValueError(f"it has the hashes {', '.join(wrote.hashes)}")
        counted = {len(self.records), len(self.contents) or parts}
        if counted != {parts} or not all(0 <= place < parts for place in places):
            raise ValueError(f"it is not of {parts} parts of files")


def _check_beside(shard: ShardEntry, side: SideReceipt) -> None:
    """Raise ValueError unless the shard of a side array can be of the documents of a shard."""
    folders = {each.name.rpartition("/")[0] for each in (shard, side.shard)}
    same = (shard.documents, shard.tokens) == (side.shard.documents, side.shard.tokens)
    if len(folders) > 1 or not same or len(side.pages) != page_count([side.shard]):
        raise ValueError(f"{side.shard.name} is not beside {shard.name}")


def _header(output: OutputReceipt) -> dict[str, Any]:
    shard = output.shard.model_dump()
    sizes = {"pages": len(output.pages), "kept_bytes": len(output.kept)}
    header = {"shard": shard, **sizes, "counts": output.counts}
    if output.sides:
        header["sides"] = {name: side.shard.model_dump() for name, side in output.sides.items()}
    if output.hashes:
        header["hashes"] = [*output.hashes]
    return header


def _columns(output: OutputReceipt) -> bytes:
    columns = np.stack([output.lengths, output.part, output.record]).astype("<u4")
    pages = [output.pages, *(side.pages for side in output.sides.values())]
    own, *others = (each.astype("<u4").tobytes() for each in pages)
    hashes = (each.astype("<u8").tobytes() for each in output.hashes.values())
    return b"".join([columns.tobytes(), own, output.kept, *others, *hashes])


def _output(fields: dict[str, Any], file: io.BytesIO) -> OutputReceipt:
    shard = ShardEntry(**fields["shard"])
    columns = np.frombuffer(file.read(3 * 4 * shard.documents), "<u4")
    lengths, part, record = columns.reshape(3, shard.documents)
    pages = np.frombuffer(file.read(4 * fields.get("pages", 0)), "<u4")
    kept = file.read(fields["kept_bytes"])
    counts, sides = Counter(fields["counts"]), {}
    for name, entry in fields.get("sides", {}).items():
        beside = ShardEntry(**entry)
        sides[name] = SideReceipt(beside, np.frombuffer(file.read(4 * page_count([beside])), "<u4"))
    hashes = {}
    for name in fields.get("hashes", []):
        width = HASH_COLUMNS[name]
        column = np.frombuffer(file.read(8 * width * shard.documents), "<u8")
        hashes[name] = column.reshape(shard.documents, width)
    return OutputReceipt(shard, lengths, part, record, pages, kept, counts, sides, hashes)


def _encode_quarantined(one: Quarantined) -> dict[str, Any]:
    # latin-1 is a bijection between bytes and the first 256 characters.
    return asdict(one) | {"raw": None if one.raw is None else one.raw.decode("latin-1")}


def _decode_quarantined(fields: dict[str, Any]) -> Quarantined:
    raw = fields["raw"]
    return Quarantined(
        **fields
        | {"raw": None if raw is None else raw.encode("latin-1"), "keys": tuple(fields["keys"])}
    )
