"""What a record becomes: plain text, prompts and answers, gaps to fill, preferences.

A task makes spans with and without loss, which are then encoded to ids and masks. To add one, add a
file with its settings, its class and a call of `register`.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice, pairwise
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny, ValidationError
from pydantic_core import to_jsonable_python

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import import_all
from jaxdata.base.ragged import AnyArray
from jaxdata.base.settings import Settings as Declared, refusal, setting
from jaxdata.converter.options import TOKENS, Option, options_of
from jaxdata.tokenizers import CannotEncode, Tokenizer

Clean = Callable[[str], str]

Record = Mapping[str, Any]
"""A JSON object, a row of a table, or a text file under the text key."""

Rate = Annotated[float, Field(ge=0, le=1)]
"""A share or probability."""


class Dropped(Exception):
    """A record or document that is left out on purpose: counted by reason, not set aside.

    The reason is in words that are the same for all that are dropped for it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Unencodable(Dropped):
    """The tokenizer fails on a document: its record is set aside, by name."""

    def __init__(self) -> None:
        super().__init__("the tokenizer cannot encode it")


class Encoded(NamedTuple):
    """A document as it will be stored.

    Attributes:
        tokens: its ids, those that begin and end it included; at least one.
        mask: uint8, of the same length, in masked tasks: 1 where the token has loss as a target.
        cuts: where its pieces begin, all but the first: each is a document of the index.
        side: the values of each side array of the task, as many as tokens.
    """

    tokens: AnyArray
    mask: AnyArray | None = None
    cuts: tuple[int, ...] = ()
    side: Mapping[str, AnyArray] = {}

    def pieces(self) -> "list[Encoded]":
        """Its pieces, each as a document.

        >>> [piece.tokens.tolist() for piece in Encoded(np.arange(5), cuts=(2,)).pieces()]
        [[0, 1], [2, 3, 4]]
        """
        return [
            Encoded(
                self.tokens[start:stop],
                None if self.mask is None else self.mask[start:stop],
                side={name: values[start:stop] for name, values in self.side.items()},
            )
            for start, stop in pairwise((0, *self.cuts, len(self.tokens)))
        ]


class Prepared(NamedTuple):
    """The documents of a record, before they are tokenised.

    Attributes:
        documents: of a type of the task's own; `Dropped` in the place of one that is left out.
        raw: the texts they were made of, before cleaning: the statistics count these.
    """

    documents: Sequence[Any]
    raw: Sequence[str]


class Settings(Declared):
    """The options of a task; a part of the parameters, so that a resume compares them by name.

    A field that users may set is an `option` with its description: the command line and the
    keyword arguments of `convert` follow from it.
    """

    makes: ClassVar[str] = ""
    """What records become, in a few words for `--help`."""
    key_options: ClassVar[str] = "--text-key"
    """The options that name the fields to read."""
    has_texts: ClassVar[bool] = True
    """Whether documents are made of texts; what cleans or counts characters is refused if not."""

    name: str
    bos: bool = setting(
        False, "Begin each document with the begin-of-sequence token.", heading=TOKENS
    )

    @property
    def text_keys(self) -> tuple[str, ...]:
        """The fields of plain text; the first is that of a text file's text."""
        return ("text",)

    @classmethod
    def completed(cls, given: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:  # noqa: ARG003
        """Return options, completed with defaults that depend on the tokenizer."""
        return dict(given)


class Task(ABC):
    """How records become documents for one kind of training; used by one thread of a worker.

    A record becomes any number of documents (mostly one), and a document one sequence of tokens
    for each stream. What a document is between `prepare` and `encode` is the task's own. It is made
    of the settings that it is registered with, and `clean`, which is done to every text first.
    """

    masked: bool = False
    """Whether its documents carry loss masks."""
    plain: bool = False
    """Whether a document is the text of one field, unchanged."""
    strings: bool = False
    """Whether the fields it reads hold strings; the columns of tables are then checked."""
    side: Mapping[str, str] = MappingProxyType({})
    """Side arrays, one value a token, that its documents carry: name -> dtype."""
    streams: tuple[str, ...] = ("",)
    """The sources it feeds: ("",) for `<source>` itself, a name for `<source>/<name>`."""
    keys: tuple[str, ...] | None = None
    """The fields it reads (see `parsing.field_of`): the columns that tables must have, and that
    are read of them. None: whatever there is."""
    array_keys: tuple[str, ...] = ()
    """Those of them whose lists of numbers in tables are wanted as arrays; others may be lists."""

    @abstractmethod
    def __init__(self, settings: Any, tokenizer: Tokenizer, clean: Clean) -> None: ...

    @abstractmethod
    def prepare(self, record: Record) -> Prepared:
        """Take the documents out of a record, cleaned; cheap.

        Raises:
            BadRecord: there is no usable text: the record is set aside.
            Dropped: the record is left out.
        """

    @abstractmethod
    def texts(self, document: Any, stream: str | None = None) -> Sequence[str]:
        """The texts of a document: its size is counted from them.

        With a stream, those of them that it gets.
        """

    def stored_text(self, document: Any) -> str | None:  # noqa: ARG002
        """The text that is stored, whole and alone; None where only the tokens say it."""
        return None

    def weight(self, document: Any) -> int:  # noqa: ARG002
        """What it holds besides texts, about, in characters: so many are encoded at a time."""
        return 0

    def hashed(self, document: Any) -> Sequence[str | bytes]:
        """What its split is chosen by: the same in every corpus that has this document."""
        return self.texts(document)

    @abstractmethod
    def encode(self, documents: Sequence[Any]) -> Sequence[tuple[Encoded, ...] | Dropped]:
        """Tokenise: for each document one `Encoded` a stream, or why it is left out."""


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The type of a stored token.

    >>> token_dtype(65_536), token_dtype(65_537)
    ('uint16', 'uint32')
    """
    return "uint16" if vocab_size <= 2**16 else "uint32"


_LONG = 200_000  # characters from which a text is encoded in parts, where its tokens stay the same


def encode(
    tokenizer: Tokenizer, texts: Sequence[str], *, special: bool = False, continuing: bool = False
) -> list[AnyArray | Dropped]:
    """Encode texts as `Tokenizer.encode` does; `Unencodable` in the place of those it fails on."""
    try:
        # Special tokens might lie across a cut: a text that may have them is not cut.
        if special or max(map(len, texts), default=0) <= _LONG:
            return list(tokenizer.encode(texts, special=special, continuing=continuing))
        cuts = [tokenizer.cuts(text, _LONG) for text in texts]
        first = tokenizer.encode([parts[0] for parts in cuts], continuing=continuing)
        later = tokenizer.encode([part for parts in cuts for part in parts[1:]], continuing=True)
    except CannotEncode:
        if len(texts) == 1:
            return [Unencodable()]
        one = partial(encode, tokenizer, special=special, continuing=continuing)
        return [one([text])[0] for text in texts]
    rest, pairs = iter(later), zip(first, cuts, strict=True)
    return [np.concatenate([ids, *islice(rest, len(parts) - 1)]) for ids, parts in pairs]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a document: a text or the id of a token, with or without loss."""

    content: str | int
    loss: bool
    special: bool = False  # whether texts of special tokens in it stand for these
    continues: bool | None = None  # another text; None for all spans but the first


class SpanEncoder:
    """Turns documents in spans into tokens and masks, many at a time.

    With `bos` each document begins with that token, where it does not already.
    """

    def __init__(self, tokenizer: Tokenizer, bos: bool) -> None:
        self._tokenizer = tokenizer
        self._bos = tokenizer.bos_id if bos else None
        self._dtype = token_dtype(tokenizer.vocab_size)

    def encode(self, documents: Sequence[Sequence[Span]]) -> list[Encoded | Dropped]:
        """Encode documents; `Dropped` in the place of those that the tokenizer fails on."""
        ids: list[Any] = []
        alike: defaultdict[tuple[bool, bool], dict[int, str]] = defaultdict(dict)
        for number, span in (one for document in documents for one in enumerate(document)):
            if isinstance(span.content, str):
                continuing = number > 0 if span.continues is None else span.continues
                alike[span.special, continuing][len(ids)] = span.content
            ids.append([span.content])  # in the place of a text, until it is encoded
        for (special, continuing), texts in sorted(alike.items()):
            own = [*texts.values()]
            found = encode(self._tokenizer, own, special=special, continuing=continuing)
            for place, one in zip(texts, found, strict=True):
                ids[place] = one
        edges = pairwise(accumulate(map(len, documents), initial=0))
        pairs = zip(documents, edges, strict=True)
        return [self._joined(document, ids[start:stop]) for document, (start, stop) in pairs]

    def _joined(self, document: Sequence[Span], parts: list[Any]) -> Encoded | Dropped:
        """A document of the ids of its spans."""
        for part in parts:
            if isinstance(part, Dropped):
                return part
        losses = [span.loss for span in document]
        begins = next((part[0] for part in parts if len(part)), None)
        if self._bos is not None and begins != self._bos:
            parts, losses = [np.array([self._bos]), *parts], [False, *losses]
        tokens = np.concatenate([np.empty(0, self._dtype), *parts]).astype(self._dtype)
        lengths = np.array([len(part) for part in parts], np.int64)
        return Encoded(tokens, np.repeat(np.array(losses, np.uint8), lengths))


_DEFAULT = "lm"
_tasks: dict[str, tuple[type[Settings], type[Task]]] = {}


def register(settings: type[Settings], task: type[Task]) -> None:
    """Make a task known by the default of its settings' `name`; a module does so when imported."""
    _tasks[settings.model_fields["name"].default] = settings, task


def _registered(name: str) -> tuple[type[Settings], type[Task]]:
    names = task_names()
    if name not in names:
        raise InputError(f"task={name!r}; expected one of {', '.join(names)}")
    return _tasks[name]


def task_names() -> dict[str, str]:
    """The names of all tasks, the default first, and what records become in each."""
    import_all(__package__)
    names = sorted(_tasks, key=lambda name: (name != _DEFAULT, name))
    return {name: _tasks[name][0].makes for name in names}


def task_options(*names: str) -> dict[str, Option]:
    """The options of some tasks, or of all, by name."""
    own = {name: [_registered(name)[0]] for name in names or task_names()}
    return options_of(own) | options_of({"": [Settings]})


def check_takes(task: str, option: str, why: str) -> None:
    """Raise InputError unless a task has an option; `why` says why not every task has it."""
    _registered(task)
    takers = [name for name, (model, _) in _tasks.items() if option in model.model_fields]
    if task not in takers:
        raise InputError(
            f"{option} is for --task {' and '.join(sorted(takers))}, not for task {task!r}: {why}"
        )


def make_settings(task: str, tokenizer: Tokenizer, options: Mapping[str, Any]) -> Settings:
    """Make the settings of a task.

    Raises:
        InputError: there is no such task or option, or its value is wrong.
    """
    (model, _), given = _registered(task), dict(options)
    if given.get("text_key") == "text":  # as it is where nobody gave it
        del given["text_key"]
    try:
        return model(**model.completed(given, tokenizer))
    except ValidationError as error:
        raise InputError(f"task {task!r}: {refusal(model, error)}") from None


def make_task(settings: Settings, tokenizer: Tokenizer, clean: Clean = str) -> Task:
    """Make the task of some settings; `clean` is done to every text before all else.

    Raises:
        InputError: the tokenizer lacks what the task needs, or a chat template does not work.
        MissingExtra: jinja2, which chat templates need, is not installed.
    """
    return _registered(settings.name)[1](settings, tokenizer, clean)


def defaults(task: str, *models: type[BaseModel]) -> dict[str, Any]:
    """The fields of a task's settings, and of more models, that have a default, as JSON has it."""
    every = [_registered(task)[0], *models]
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True))
        for model in every
        for name, field in model.model_fields.items()
        if not field.is_required()
    }


def _read(settings: Any) -> Any:
    """Settings as JSON has them are of the model that their name says."""
    if isinstance(settings, dict) and "name" in settings:
        return _registered(settings["name"])[0](**settings)
    return settings


TaskSettings = Annotated[SerializeAsAny[Settings], BeforeValidator(_read)]
"""The settings of any task, told apart by their `name`."""
