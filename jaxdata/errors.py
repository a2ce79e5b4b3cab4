"""Every error a user of jaxdata can meet.

    JaxdataError
    ├── InputError        what was given is wrong: an argument, a corpus, a tokenizer (a ValueError)
    │   └── ConfigError   … in a config or an override of it
    ├── DatasetError      what is on disk is missing, damaged, or of another version
    ├── StateMismatch     a checkpoint belongs to another run (a ValueError)
    ├── SourceExhausted   a mixture asks for more rows than a source has
    ├── MissingExtra      an optional dependency is not installed (an ImportError)
    └── WorkerDied        a worker process ended before its work (a RuntimeError)

Each message says what was given, what was expected, and what to do.
"""

from __future__ import annotations

from jaxdata.installing import install_command

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


class JaxdataError(Exception):
    """Base of all errors that jaxdata raises on purpose."""


class InputError(JaxdataError, ValueError):
    """An argument, a corpus file or a tokenizer is not what was expected."""


class ConfigError(InputError):
    """A config file or an override of one of its fields is wrong."""


class DatasetError(JaxdataError):
    """A dataset on disk is missing, damaged, or written by another version."""


class StateMismatch(JaxdataError, ValueError):
    """A loader state was saved by a run with other data or another recipe."""


class SourceExhausted(JaxdataError):
    """A source of a mixture has fewer rows than the phases ask of it."""


class MissingExtra(JaxdataError, ImportError):
    """An optional dependency is missing; names the extra that brings it.

    >>> str(MissingExtra("hf", "tokenizers")).split(" '")[0]
    'tokenizers is not installed; install it with: pip install'
    """

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(f"{package} is not installed; install it with: {install_command(extra)}")
        self._extra, self._package = extra, package

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), (self._extra, self._package)


class WorkerDied(JaxdataError, RuntimeError):
    """A worker process ended before it had done what it was asked to do."""
