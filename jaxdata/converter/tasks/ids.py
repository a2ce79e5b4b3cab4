"""Corpora that are tokenised already: a list of ids is a document."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from jaxdata.converter.inputs.parsing import BadRecord, field_of
from jaxdata.converter.options import INPUT, option
from jaxdata.converter.tasks.base import (
    Clean,
    Dropped,
    Encoded,
    Prepared,
    Record,
    Settings,
    Task,
    token_dtype,
)
from jaxdata.converter.tasks.registry import register
from jaxdata.tokenizers import Tokenizer

NO_LOSS = -100
"""The label of a token without loss, as Hugging Face and torch have it."""


class IdsSettings(Settings):
    """Settings of :class:`IdsTask`."""

    makes: ClassVar[str] = "ids as they are, of a corpus that is tokenised already"
    key_options: ClassVar[str] = "--ids-key, --mask-key and --labels-key"
    has_texts: ClassVar[bool] = False

    name: Literal["ids"] = "ids"
    ids_key: str = option(
        "input_ids", "Key of the ids: a list of whole numbers.", heading=INPUT, metavar="KEY"
    )
    mask_key: str | None = option(
        None,
        "Key of a loss mask, as long as the ids: 1 or true where the token at the same place has "
        "loss when it is predicted.",
        heading=INPUT,
        metavar="KEY",
    )
    labels_key: str | None = option(
        None,
        f"Key of labels, instead of a mask: the ids again, with {NO_LOSS} where there is no loss.",
        heading=INPUT,
        metavar="KEY",
    )
    ids_end: Literal["add", "keep"] = option(
        "add",
        "What ends documents: 'add' adds the end-of-document token where it is not the last id; "
        "'keep' stores ids as they end, as for a corpus of chunks.",
    )

    @model_validator(mode="after")
    def _one_mask(self) -> Self:
        if self.mask_key is not None and self.labels_key is not None:
            raise ValueError("give a mask or labels, not both")
        return self


class Ids(NamedTuple):
    """A document, without what is added to it."""

    tokens: NDArray[Any]
    mask: NDArray[np.uint8] | None


class IdsTask(Task):
    """See `Task`; a document is its ids, as they are stored, and their mask.

    What is added has loss as its neighbour has: EOD if the last id has, BOS never. Without a mask
    all have.
    """

    def __init__(self, settings: IdsSettings, tokenizer: Tokenizer, clean: Clean | None) -> None:  # noqa: ARG002
        self._settings, self._vocab_size = settings, tokenizer.vocab_size
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._bos = tokenizer.bos_id if settings.bos else None
        self._eod = tokenizer.eod_id if settings.ids_end == "add" else None
        chosen = settings.ids_key, settings.mask_key, settings.labels_key
        self.keys: tuple[str, ...] = tuple(key for key in chosen if key is not None)
        self.array_keys = self.keys
        self.masked = len(self.keys) > 1

    def prepare(self, record: Record) -> Prepared:
        settings = self._settings
        found = whole_numbers(field_of(record, settings.ids_key), settings.ids_key)
        # One pass finds both: as an unsigned number a negative one is huge.
        if len(found) and int(_unsigned(found).max()) >= self._vocab_size:
            raise BadRecord(self._outside(found))
        mask = self._mask(record, found)
        return Prepared((Ids(found.astype(self._dtype), mask),), ())

    def _outside(self, ids: NDArray[Any]) -> str:
        key = self._settings.ids_key
        if int(ids.min()) < 0:
            return f"{key!r} holds a negative id"
        return f"{key!r} holds an id outside the vocabulary of {self._vocab_size:,}"

    def _mask(self, record: Record, ids: NDArray[Any]) -> NDArray[np.uint8] | None:
        """The mask of a record; None where the source has none."""
        if (key := self._settings.mask_key or self._settings.labels_key) is None:
            return None
        given = whole_numbers(field_of(record, key), key, flags=key == self._settings.mask_key)
        if len(given) != len(ids):
            raise BadRecord(f"{key!r} is not as long as {self._settings.ids_key!r}")
        if key == self._settings.mask_key:
            if len(given) and int(_unsigned(given).max()) > 1:
                raise BadRecord(f"{key!r} holds other values than 0 and 1")
            return given.astype(np.uint8, copy=False)
        mask: NDArray[np.bool_] = given != NO_LOSS
        if not np.array_equal(given[mask], ids[mask]):
            raise BadRecord(
                f"{key!r} holds a label that is neither {NO_LOSS} nor the id at its place"
            )
        return mask.astype(np.uint8)

    def texts(self, document: Ids, stream: str | None = None) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def weight(self, document: Ids) -> int:
        return len(document.tokens)

    def hashed(self, document: Ids) -> tuple[bytes, ...]:
        """The ids, little-endian: those without EOD and with it are of one document."""
        tokens = document.tokens
        if self._eod is not None and len(tokens) and tokens[-1] == self._eod:
            tokens = tokens[:-1]
        return (tokens.astype("<u4").tobytes(),)

    def encode(self, documents: Sequence[Ids]) -> list[tuple[Encoded] | Dropped]:
        ends = [self._ends(one.tokens) for one in documents]
        counts = [
            len(one.tokens) + begin + end for one, (begin, end) in zip(documents, ends, strict=True)
        ]
        tokens = self._joined([one.tokens for one in documents], ends)
        masks = None
        if self.masked:
            masks = np.concatenate([_mask_of(*pair) for pair in zip(documents, ends, strict=True)])
        return [
            (Encoded(tokens[start:stop], None if masks is None else masks[start:stop]),)
            if stop > start
            else Dropped("no id in it")
            for start, stop in pairwise(accumulate(counts, initial=0))
        ]

    def _ends(self, tokens: NDArray[Any]) -> tuple[bool, bool]:
        """Whether BOS and EOD are added to some ids."""
        begin = self._bos is not None and not (len(tokens) and tokens[0] == self._bos)
        return begin, self._eod is not None and not (len(tokens) and tokens[-1] == self._eod)

    def _joined(
        self, ids: Sequence[NDArray[Any]], ends: Sequence[tuple[bool, bool]]
    ) -> NDArray[Any]:
        """All ids, with what is added; one array for all is made faster than one for each."""
        none = np.empty(0, self._dtype)
        bos, eod = (
            none if at is None else np.array([at], self._dtype) for at in (self._bos, self._eod)
        )
        parts = [none] * (3 * len(ids) + 1)
        parts[0:-1:3] = [bos if begin else none for begin, _ in ends]
        parts[1::3] = ids
        parts[2::3] = [eod if end else none for _, end in ends]
        return np.concatenate(parts)


def _mask_of(document: Ids, ends: tuple[bool, bool]) -> NDArray[np.uint8]:
    mask = document.mask
    assert mask is not None
    begin, end = ends
    after = [mask[-1] if len(mask) else 1] if end else []
    return np.concatenate([np.zeros(int(begin), np.uint8), mask, np.array(after, np.uint8)])


def whole_numbers(given: Any, key: str, *, flags: bool = False) -> NDArray[Any]:
    """Return a list of whole numbers, or with `flags` also of bools, as an array.

    Raises:
        BadRecord: it is anything else.

    >>> whole_numbers([5, 7], "input_ids")
    array([5, 7])
    """
    if given is None:
        raise BadRecord(f"{key!r} is null")
    if not isinstance(given, np.ndarray):
        if not isinstance(given, list | tuple):
            raise BadRecord(f"{key!r} is not a list")
        kinds = {*map(type, given)}
        if not kinds <= ({int, bool} if flags else {int}):
            raise BadRecord(f"{key!r} holds what is not a whole number")
        try:
            return np.array(given, np.int64)
        except OverflowError:
            raise BadRecord(f"{key!r} holds a number of more than 64 bits") from None
    if given.dtype.kind not in ("biu" if flags else "iu"):
        raise BadRecord(f"{key!r} holds what is not a whole number")
    return given


def _unsigned(array: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers with the negative ones as numbers from 2^31 on."""
    if array.dtype.kind != "i":
        return array
    wide = array if array.itemsize >= 4 else array.astype(np.int32)
    return wide.view(wide.dtype.str.replace("i", "u"))


register(IdsSettings, IdsTask)
