"""Corpora that are tokenised already: a list of ids is a document, with columns beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from jaxdata.base.settings import setting
from jaxdata.converter.inputs.parsing import BadRecord, field_of
from jaxdata.converter.options import INPUT, Keys
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
from jaxdata.dataset.manifest import as_type
from jaxdata.tokenizers import Tokenizer


class PerToken:
    """The side arrays of a task whose tokens are the ids of a list, one for one.

    Args:
        kept: "name:dtype" of each, or "name:dtype:fill".

    >>> kept = PerToken(["weight:float32"])
    >>> kept.read({"weight": [0.5, 2]}, 2, "input_ids")
    {'weight': array([0.5, 2. ], dtype=float32)}
    """

    def __init__(self, kept: Sequence[str]) -> None:
        parts = [one.split(":") for one in kept]
        self.dtypes = {name: dtype for name, dtype, *_ in parts}
        self.fills = {name: _number(*fill) for name, _, *fill in parts}
        """the value for tokens that are added"""

    def read(self, record: Record, ids: int, ids_key: str) -> dict[str, NDArray[Any]]:
        """Take the values for so many ids out of a record; raises BadRecord."""
        found = {}
        for name, dtype in self.dtypes.items():
            values = numbers(field_of(record, name), name, int, float)
            if len(values) != ids:
                raise BadRecord(f"{name!r} is not as long as {ids_key!r}")
            fitting = as_type(values, np.dtype(dtype))
            if fitting is None:
                raise BadRecord(f"{name!r} holds a number that {dtype} does not hold")
            found[name] = fitting
        return found


def _number(fill: str = "0") -> float:
    return int(fill) if fill.lstrip("-").isdecimal() else float(fill)


NO_LOSS = -100
"""The label of a token without loss, as Hugging Face and torch have it."""


class IdsSettings(Settings):
    """Settings of :class:`IdsTask`."""

    makes: ClassVar[str] = "token ids as they are"
    key_options: ClassVar[str] = "--ids-key, --mask-key and --labels-key"
    has_texts: ClassVar[bool] = False

    name: Literal["ids"] = "ids"
    ids_key: str = setting(
        "input_ids", "Key of the ids: a list of whole numbers.", heading=INPUT, metavar="KEY"
    )
    mask_key: str | None = setting(
        None,
        "Key of a loss mask, as long as the ids: 1 or true where the token at the same place has "
        "loss when it is predicted.",
        heading=INPUT,
        metavar="KEY",
    )
    labels_key: str | None = setting(
        None,
        f"Key of labels, instead of a mask: the ids again, with {NO_LOSS} where there is no loss.",
        heading=INPUT,
        metavar="KEY",
    )
    ids_end: Literal["add", "keep"] = setting(
        "add",
        "What ends documents: 'add' adds the end-of-document token where it is not the last id; "
        "'keep' stores ids as they end, as for a corpus of chunks.",
    )

    keep_per_token: Keys = setting(
        (),
        "Keys of lists as long as the ids, separated by commas (weight,language:uint8): side "
        "arrays of the documents, which batches have on request. A type is needed where no table "
        "states it; NAME:TYPE:FILL is for tokens that are added, which get 0.",
        heading=INPUT,
        metavar="NAMES",
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
    side: Mapping[str, NDArray[Any]]


class IdsTask(Task):
    """See `Task`; a document is its ids, as they are stored, and their mask.

    What is added has loss as its neighbour has: EOD if the last id has, BOS never. Without a mask
    all have. Side arrays have their fill there.
    """

    def __init__(self, settings: IdsSettings, tokenizer: Tokenizer, clean: Clean | None) -> None:  # noqa: ARG002
        self._settings, self._vocab_size = settings, tokenizer.vocab_size
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._bos = tokenizer.bos_id if settings.bos else None
        self._eod = tokenizer.eod_id if settings.ids_end == "add" else None
        chosen = settings.ids_key, settings.mask_key, settings.labels_key
        self.keys: tuple[str, ...] = tuple(key for key in chosen if key is not None)
        self.masked = len(self.keys) > 1
        self._kept = PerToken(settings.keep_per_token)
        self.side = self._kept.dtypes
        self.keys += tuple(self.side)
        self.array_keys = self.keys

    def prepare(self, record: Record) -> Prepared:
        settings = self._settings
        found = numbers(field_of(record, settings.ids_key), settings.ids_key, int)
        # One pass finds both: as an unsigned number a negative one is huge.
        if len(found) and int(_unsigned(found).max()) >= self._vocab_size:
            raise BadRecord(self._outside(found))
        mask = self._mask(record, found)
        side = self._kept.read(record, len(found), settings.ids_key)
        return Prepared((Ids(found.astype(self._dtype), mask, side),), ())

    def _outside(self, ids: NDArray[Any]) -> str:
        key = self._settings.ids_key
        if int(ids.min()) < 0:
            return f"{key!r} holds a negative id"
        return f"{key!r} holds an id outside the vocabulary of {self._vocab_size:,}"

    def _mask(self, record: Record, ids: NDArray[Any]) -> NDArray[np.uint8] | None:
        """The mask of a record; None where the source has none."""
        if (key := self._settings.mask_key or self._settings.labels_key) is None:
            return None
        kinds = (int, bool) if key == self._settings.mask_key else (int,)
        given = numbers(field_of(record, key), key, *kinds)
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
        bos, eod = self._bos or 0, self._eod or 0
        tokens = _joined([one.tokens for one in documents], ends, (bos, eod))
        masks = None
        if self.masked:
            masks = np.concatenate([_mask_of(*pair) for pair in zip(documents, ends, strict=True)])
        sides = {
            name: _joined([one.side[name] for one in documents], ends, (fill, fill))
            for name, fill in self._kept.fills.items()
        }
        return [
            (
                Encoded(
                    tokens[start:stop],
                    None if masks is None else masks[start:stop],
                    side={name: values[start:stop] for name, values in sides.items()},
                ),
            )
            if stop > start
            else Dropped("no id in it")
            for start, stop in pairwise(accumulate(counts, initial=0))
        ]

    def _ends(self, tokens: NDArray[Any]) -> tuple[bool, bool]:
        """Whether BOS and EOD are added to some ids."""
        begin = self._bos is not None and not (len(tokens) and tokens[0] == self._bos)
        return begin, self._eod is not None and not (len(tokens) and tokens[-1] == self._eod)


def _joined(
    arrays: Sequence[NDArray[Any]],
    ends: Sequence[tuple[bool, bool]],
    added: tuple[float, float],
) -> NDArray[Any]:
    """Arrays of one type with what is added; one for all is made faster than one for each."""
    dtype = arrays[0].dtype if arrays else np.dtype(np.uint16)
    none = np.empty(0, dtype)
    before, after = (np.array([value], dtype) for value in added)
    parts = [none] * (3 * len(arrays) + 1)
    parts[0:-1:3] = [before if begin else none for begin, _ in ends]
    parts[1::3] = arrays
    parts[2::3] = [after if end else none for _, end in ends]
    return np.concatenate(parts)


def _mask_of(document: Ids, ends: tuple[bool, bool]) -> NDArray[np.uint8]:
    mask = document.mask
    assert mask is not None
    begin, end = ends
    after = [mask[-1] if len(mask) else 1] if end else []
    return np.concatenate([np.zeros(int(begin), np.uint8), mask, np.array(after, np.uint8)])


_LETTERS = {int: "iu", bool: "b", float: "f"}


def numbers(given: Any, key: str, *kinds: type) -> NDArray[Any]:
    """Return a list of numbers of some kinds as an array; raises BadRecord where it is none.

    >>> numbers([5, 7], "input_ids", int)
    array([5, 7])
    """
    if given is None:
        raise BadRecord(f"{key!r} is null")
    wrong = BadRecord(f"{key!r} holds what is not a {'' if float in kinds else 'whole '}number")
    if isinstance(given, list | tuple):
        if not {*map(type, given)} <= {*kinds}:
            raise wrong
        try:
            given = np.array(given, None if float in kinds else np.int64)
        except OverflowError:
            given = np.array(given, object)
    if not isinstance(given, np.ndarray):
        raise BadRecord(f"{key!r} is not a list")
    if given.dtype.kind == "O":
        raise BadRecord(f"{key!r} holds a number of more than 64 bits")
    if not any(given.dtype.kind in _LETTERS[kind] for kind in kinds):
        raise wrong
    return given


def _unsigned(array: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers with the negative ones as numbers from 2^31 on."""
    if array.dtype.kind != "i":
        return array
    wide = array if array.itemsize >= 4 else array.astype(np.int32)
    return wide.view(wide.dtype.str.replace("i", "u"))


register(IdsSettings, IdsTask)
