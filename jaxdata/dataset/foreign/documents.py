"""Other tools' datasets as sources: files are memory-mapped in place, not converted."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import DatasetError
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import ByteRanges, Ints, by_value, expand
from jaxdata.dataset.array_documents import GivenRanges
from jaxdata.dataset.documents import Documents, Gathered
from jaxdata.dataset.foreign import beside, read_parts, source_name
from jaxdata.dataset.foreign.contract import sample
from jaxdata.storage import LocalStore


class ForeignDocuments(Documents):
    """The documents of another tool's dataset `"<kind>:<path>"` (see `Documents`).

    With `sequences`, Megatron's sequences instead of its documents.
    """

    def __init__(self, spec: str, eod_id: int | None = None, sequences: bool = False) -> None:
        self._given = (spec, eod_id, sequences)
        self.name, self.store = f"train/{source_name(spec)}", beside(spec)
        parts = self._parts = read_parts(spec, eod_id, sequences)
        self._stored = parts[0].dtype
        masks = [part.mask for part in parts if part.mask is not None]
        if {part.dtype for part in parts} != {self._stored} or len(masks) not in (0, len(parts)):
            raise DatasetError(
                f"{spec}: its files have tokens of {', '.join(str(part.dtype) for part in parts)}, "
                f"and {len(masks)} of {len(parts)} have a loss mask: open them as separate sources"
            )
        self.lengths = _joined([part.lengths for part in parts])
        self._first = np.cumsum([0, *(len(part.lengths) for part in parts)])[:-1]
        context = [part.context for part in parts if part.context is not None]
        self._context: NDArray[np.uint16] | None = _joined(context) if context else None
        self._files = [part.tokens for part in parts] + masks
        self._folder = LocalStore(self._files[0].parent)
        self._stores_masks, self.masked = bool(masks), bool(masks or context)
        # int32 is read as uint32: the bytes are equal, as negative ids are refused.
        self.dtype = np.dtype("<u2" if self._stored.itemsize < 4 else "<u4")

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeignDocuments, self._given

    @cached_property
    def fingerprint(self) -> str:
        """Covers sizes, samples, dtype, lengths and context, but no paths or times."""
        content = hashlib.sha256(self._stored.str.encode())
        for part in self._parts:
            files = [part.tokens] if part.mask is None else [part.tokens, part.mask]
            content.update("".join(map(sample, files)).encode())
        for array in (self.lengths, self._context):
            if array is not None:
                content.update(np.ascontiguousarray(array).data)
        return content.hexdigest()

    @property
    def sequences(self) -> "ForeignDocuments":
        """Megatron's sequences, of which its documents consist, as documents."""
        spec, eod_id, _ = self._given
        found = ForeignDocuments(spec, eod_id, sequences=True)
        found.decode = self.decode
        return found

    def _gather(self, documents: Ints, starts: Ints, counts: Ints, *, masks: bool) -> ByteRanges:
        """Ranges of tokens, or of their stored masks, in maps of the files."""
        part = np.searchsorted(self._first, documents, side="right") - 1
        begin = np.empty(len(documents), np.int64)  # tokens before each in its file
        for number, mine in by_value(part):
            here = self._parts[number]
            begin[mine] = here.offsets[documents[mine] - self._first[number]]
            begin[mine] //= self._stored.itemsize // here.unit
        item = 1 if masks else self._stored.itemsize
        start, names = (begin + starts) * item, [each.name for each in self._files]
        file = part + masks * len(self._parts)
        return self._folder.gather(names, file, start, start + counts * item)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        """See `Documents`; views of the memory maps where the files have uint16 or uint32."""
        found = self._gather(documents, starts, counts, masks=False)
        if self._stored == self.dtype:  # unsigned numbers need no check
            return Gathered(found, np.arange(len(documents)))
        given = GivenRanges(self._given[0], documents, starts, counts)
        ids = given.as_ids(np.frombuffer(found.join(), self._stored), self.dtype)
        return Gathered.cut(ids, counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        if self._stores_masks:
            found = self._gather(documents, starts, counts, masks=True)
            return Gathered(found, np.arange(len(documents)))
        assert self._context is not None
        owner, place = expand(counts)
        mask = place >= (self._context[documents] - starts)[owner]
        return Gathered.cut(mask.astype(np.uint8), counts)


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
