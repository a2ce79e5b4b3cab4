"""Errors that users can catch, the log, and the command that installs an extra that is missing."""

import logging
from functools import cache
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

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f"{package} is not installed; install it with: {install_command(extra)}")
        self._extra, self._package = extra, package

    def __reduce__(self) -> "tuple[type[MissingExtra], tuple[str, str]]":
        return type(self), (self._extra, self._package)


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
