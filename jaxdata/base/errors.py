"""What jaxdata says: errors that users can catch, the log, numbers in sentences, facts that differ.

Facts are JSON values by name: digests are made of them, and two sets compared.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from typing import Any

__all__ = [
    "ConfigError",
    "DatasetError",
    "InputError",
    "JaxdataError",
    "MissingExtra",
    "SourceExhausted",
    "StateMismatch",
    "WorkerDied",
]

log = logging.getLogger("jaxdata")


@cache
def warn_once(message: str) -> None:
    """Warn, unless this process has said the same before."""
    log.warning("%s", message)


class JaxdataError(Exception):
    """Base of all errors that jaxdata raises on purpose.

    >>> import jaxdata
    >>> try:
    ...     jaxdata.open_dataset("missing")
    ... except jaxdata.JaxdataError as error:
    ...     print(type(error).__name__)
    DatasetError
    """


class InputError(JaxdataError, ValueError):
    """An argument, a corpus file or a tokenizer is not what was expected.

    >>> import jaxdata
    >>> jaxdata.Phase(rows=-1, weights={"web": 1})
    Traceback (most recent call last):
    jaxdata.base.errors.InputError: a phase of rows=-1: expected a whole number of at least 1
    """


class ConfigError(InputError):
    """A config file or an override of one of its fields is wrong.

    >>> import jaxdata
    >>> jaxdata.load({"pack": {"seq_len": "long"}})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxdata.base.errors.ConfigError: pack.seq_len='long': expected a whole number ...
    """


class DatasetError(JaxdataError):
    """A dataset on disk is missing, damaged, or written by another version.

    >>> import jaxdata
    >>> jaxdata.open_dataset("missing")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    jaxdata.base.errors.DatasetError: missing is not a dataset: there is no such folder. If ...
    """


class StateMismatch(JaxdataError, ValueError):
    """A loader state was saved by a run with other data or another recipe.

    >>> import jaxdata
    >>> docs = jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]])
    >>> saved = jaxdata.Loader(jaxdata.pack(docs, seq_len=2), batch_size=1).get_state()
    >>> try:
    ...     jaxdata.Loader(jaxdata.pack(docs, seq_len=3), batch_size=1).set_state(saved)
    ... except jaxdata.StateMismatch as error:
    ...     print(str(error).splitlines()[1])
      seq_len was 2, is 3: set seq_len back, or start a new run
    """


class SourceExhausted(JaxdataError):
    """A source of a mixture has fewer rows than the phases ask of it.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> try:
    ...     jaxdata.mix({"web": rows}, phases=[jaxdata.Phase(rows=9, weights={"web": 1})])
    ... except jaxdata.SourceExhausted as error:
    ...     print(str(error).splitlines()[1])
      phase 0, source 'web': demanded 9 rows, available 2, short by 7
    """


def install_command(extra: str) -> str:
    """What to type where an extra is missing.

    >>> install_command("hf")
    "pip install 'jaxdata[hf]'"
    """
    return f"pip install 'jaxdata[{extra}]'"


class MissingExtra(JaxdataError, ImportError):
    """An optional dependency is missing; names the extra that brings it.

    >>> print(MissingExtra("hf", "tokenizers"))
    tokenizers is not installed; install it with: pip install 'jaxdata[hf]'
    """

    def __str__(self) -> str:
        extra, package = self.args
        return f"{package} is not installed; install it with: {install_command(extra)}"


def extra_module(extra: str, package: str) -> Any:
    """An optional package, imported; raises MissingExtra, which names the extra that brings it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingExtra(extra, package) from error


class WorkerDied(JaxdataError, RuntimeError):
    """A worker process ended before it had done what it was asked to do.

    Its message says which, and how it ended; a loader of the same state goes on.

    >>> import jaxdata
    >>> issubclass(jaxdata.WorkerDied, jaxdata.JaxdataError)
    True
    """


_UNITS = ("kB", "MB", "GB", "TB")
_NAMED = 3  # reasons


def counted(number: int, what: str) -> str:
    """The number and its noun, in the plural except for one.

    >>> counted(1, "shard"), counted(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def sized(size: float) -> str:
    """A number of bytes, in units of 1,000.

    >>> sized(1), sized(999), sized(2_560), sized(3.21e6), sized(4e16)
    ('1 byte', '999 bytes', '2.6 kB', '3.2 MB', '40,000.0 TB')
    """
    if size < 1_000:
        return counted(round(size), "byte")
    unit = -1
    while size >= 1_000 and unit < len(_UNITS) - 1:
        size, unit = size / 1_000, unit + 1
    return f"{size:,.1f} {_UNITS[unit]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a wrong name: the known one that was meant, if one is near.

    >>> nearest("weigth", ["weight", "seed"]), nearest("x", ["seed"])
    ("; did you mean 'weight'?", '')
    """
    near = get_close_matches(name, [*known], 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def either(names: Iterable[str]) -> str:
    """Names, one of which is expected.

    >>> either(["a"]), either(["b", "a", "c"])
    ("'a'", "'b', 'a' or 'c'")
    """
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last


def shortened(text: str, most: int = 120) -> str:
    """A text of at most so many characters, with an ellipsis where it was cut.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def reasons(counts: dict[str, int], noun: str = "reason") -> str:
    """Counts by reason, the most common first, and how many reasons are not named.

    >>> reasons({"not JSON": 2, "no text": 1_000})
    '1,000 no text; 2 not JSON'
    """
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    said = [f"{count:,} {reason}" for reason, count in ordered[:_NAMED]]
    if len(ordered) > _NAMED:
        said.append(counted(len(ordered) - _NAMED, f"other {noun}"))
    return "; ".join(said)


def on_one_line(text: object) -> str:
    r"""A text with its invisible characters written out.

    >>> print(on_one_line("a\n\x1b[31m"))
    a\n\x1b[31m
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def name_of(function: Any) -> str:
    """What people call a function: `module:name`; a `partial` by what it calls.

    >>> name_of(partial(counted, 1))
    'jaxdata.base.errors:counted'
    """
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


_SHOWN = 400  # characters of a value


def digest(value: Any) -> str:
    """The sha256 of a JSON value, in hex: equal values have equal digests.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def brief(value: Any, most: int = 160) -> Any:
    """A value itself if its JSON has at most `most` characters, else 8 hex digits of its digest."""
    return value if len(json.dumps(value)) <= most else digest(value)[:8]


def itemized(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with each entry of a dict or list as a fact of its own.

    >>> itemized({"seed": 0, "data": {"web": "a1"}, "shard": [0, 2]})
    {'seed': 0, 'data[web]': 'a1', 'shard[0]': 0, 'shard[1]': 2}
    """
    items: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            items |= {f"{name}[{key}]": inner for key, inner in value.items()}
        elif isinstance(value, list):
            items |= {f"{name}[{number}]": inner for number, inner in enumerate(value)}
        else:
            items[name] = value
    return items


def differences(
    was: Mapping[str, Any], now: Mapping[str, Any], words: tuple[str, str] = ("was", "is")
) -> dict[str, str]:
    """By name, sorted, "NAME was A, is B" for each fact that differs; absent equals None.

    >>> differences({"seed": 0, "epochs": 1}, {"seed": 7, "epochs": 1, "block": 9})
    {'block': 'block was absent, is 9', 'seed': 'seed was 0, is 7'}
    """
    names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return {
        name: f"{name} {words[0]} {_shown(was, name)}, {words[1]} {_shown(now, name)}"
        for name in names
    }


def _shown(facts: Mapping[str, Any], name: str) -> str:
    return shortened(repr(facts[name]), _SHOWN) if name in facts else "absent"
