"""Corpora that are tokenised already: a list of ids is a document, with columns beside it."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import model_validator

import jaxdata.converter.tasks as tasks
from jaxdata.base.ragged import AnyArray, Bools
from jaxdata.base.settings import setting
from jaxdata.converter.inputs.parsing import BadRecord, field_of
from jaxdata.converter.options import INPUT, Keys, key_setting
from jaxdata.dataset.manifest import as_type
from jaxdata.tokenizers import Tokenizer

NO_LOSS = -100
"""The label of a token without loss, as Hugging Face and torch have it."""


class IdsSettings(tasks.Settings):
    """Settings of :class:`IdsTask`."""

    makes: ClassVar[str] = "token ids as they are"
    key_options: ClassVar[str] = "--ids-key, --mask-key and --labels-key"
    has_texts: ClassVar[bool] = False

    name: Literal["ids"] = "ids"
    ids_key: str = key_setting("input_ids", "Key of the ids: a list of whole numbers.")
    mask_key: str | None = key_setting(
        None,
        "Key of a loss mask, as long as the ids: 1 or true where the token at the same place has "
        "loss when it is predicted.",
    )
    labels_key: str | None = key_setting(
        None,
        f"Key of labels, instead of a mask: the ids again, with {NO_LOSS} where there is no loss.",
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
        "states it; tokens that are added get 0.",
        heading=INPUT,
        metavar="NAMES",
    )

    @model_validator(mode="after")
    def _one_mask(self) -> Self:
        if self.mask_key is not None and self.labels_key is not None:
            raise ValueError("give a mask or labels, not both")
        return self


class IdsTask(tasks.Task):
    """See `Task`; a document is its ids and their mask, without what is added to it.

    What is added has loss as its neighbour has: EOD if the last id has, BOS never. Without a mask
    all have. Side arrays have 0 there.
    """

    def __init__(self, settings: IdsSettings, tokenizer: Tokenizer, _: tasks.Clean) -> None:
        self._settings, self._vocab_size = settings, tokenizer.vocab_size
        self._dtype = tasks.token_dtype(tokenizer.vocab_size)
        self._bos = tokenizer.bos_id if settings.bos else None
        self._eod = tokenizer.eod_id if settings.ids_end == "add" else None
        self.side = dict(one.split(":") for one in settings.keep_per_token)  # with types
        chosen = settings.ids_key, settings.mask_key, settings.labels_key
        self.masked = chosen[1:] != (None, None)
        self.keys = (*(key for key in chosen if key is not None), *self.side)
        self.array_keys = self.keys

    def prepare(self, record: tasks.Record) -> tasks.Prepared:
        key = self._settings.ids_key
        found = numbers(field_of(record, key), key, int)
        if len(found) and found.min() < 0:
            raise BadRecord(f"{key!r} holds a negative id")
        if len(found) and found.max() >= self._vocab_size:
            raise BadRecord(f"{key!r} holds an id outside the vocabulary of {self._vocab_size:,}")
        mask = self._mask(record, found)
        side = {}
        for name, dtype in self.side.items():
            fitting = as_type(self._beside(found, record, name, int, float), np.dtype(dtype))
            if fitting is None:
                raise BadRecord(f"{name!r} holds a number that {dtype} does not hold")
            side[name] = fitting
        document = tasks.Encoded(found.astype(self._dtype), mask, side=side)
        return tasks.Prepared((document,), ())

    def _beside(self, ids: AnyArray, record: tasks.Record, key: str, *kinds: type) -> AnyArray:
        """Take a list that is as long as some ids out of a record."""
        found = numbers(field_of(record, key), key, *kinds)
        if len(found) != len(ids):
            raise BadRecord(f"{key!r} is not as long as {self._settings.ids_key!r}")
        return found

    def _mask(self, record: tasks.Record, ids: AnyArray) -> AnyArray | None:
        """The mask of a record; None where the source has none."""
        if (key := self._settings.mask_key) is not None:
            given = self._beside(ids, record, key, int, bool)
            if not np.isin(given, (0, 1)).all():
                raise BadRecord(f"{key!r} holds other values than 0 and 1")
            return given.astype(np.uint8, copy=False)
        if (key := self._settings.labels_key) is None:
            return None
        labels = self._beside(ids, record, key, int)
        mask: Bools = labels != NO_LOSS
        if not np.array_equal(labels[mask], ids[mask]):
            raise BadRecord(
                f"{key!r} holds a label that is neither {NO_LOSS} nor the id at its place"
            )
        return mask.astype(np.uint8)

    def texts(self, document: Any, stream: str | None = None) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def weight(self, document: tasks.Encoded) -> int:
        return len(document.tokens)

    def hashed(self, document: tasks.Encoded) -> tuple[bytes, ...]:
        """The ids, little-endian: those without EOD and with it are of one document."""
        tokens = document.tokens
        if self._eod is not None and len(tokens) and tokens[-1] == self._eod:
            tokens = tokens[:-1]
        return (tokens.astype("<u4").tobytes(),)

    def encode(self, documents: Sequence[Any]) -> list[tuple[tasks.Encoded] | tasks.Dropped]:
        return [*map(self._ended, documents)]

    def _ended(self, document: tasks.Encoded) -> tuple[tasks.Encoded] | tasks.Dropped:
        tokens, mask, _, side = document
        begin = self._bos is not None and not (len(tokens) and tokens[0] == self._bos)
        end = self._eod is not None and not (len(tokens) and tokens[-1] == self._eod)
        if not (len(tokens) or begin or end):
            return tasks.Dropped("no id in it")

        def between(first: Any, values: AnyArray, last: Any) -> AnyArray:
            """Values with those of tokens that are added."""
            made = np.empty(begin + len(values) + end, values.dtype)
            made[:begin], made[len(made) - end :] = first, last
            made[begin : len(made) - end] = values
            return made

        return (
            tasks.Encoded(
                between(self._bos or 0, tokens, self._eod or 0),
                None if mask is None else between(0, mask, mask[-1] if len(mask) else 1),
                side={name: between(0, values, 0) for name, values in side.items()},
            ),
        )


_LETTERS = {int: "iu", bool: "b", float: "f"}


def numbers(given: Any, key: str, *kinds: type) -> AnyArray:
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


tasks.register(IdsSettings, IdsTask)
