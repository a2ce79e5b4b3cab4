"""Errors that users can catch, and the command that installs an extra that is missing."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """What to type where an extra is missing.

    Where jaxdata came from an index it names it; else it names the folder or URL that it came from,
    since an index may have another jaxdata, or none.
    """
    return f"pip install {quote(_wanted(extra))}"


def _wanted(extra: str) -> str:
    url = _origin()
    if url is None:
        return f"jaxdata[{extra}]"
    if url.startswith("file:") and (folder := Path(unquote(urlsplit(url).path))).is_dir():
        return f"{folder}[{extra}]"
    return f"jaxdata[{extra}] @ {url}"


def _origin() -> str | None:
    """Where jaxdata was installed from; None for an index (PEP 610).

    A checkout that is used without being installed counts as installed from there.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    checkout = Path(__file__).parents[2]
    try:
        found = distribution("jaxdata").read_text("direct_url.json")
    except PackageNotFoundError:
        return checkout.as_uri() if (checkout / "pyproject.toml").is_file() else None
    return None if found is None else str(json.loads(found)["url"])


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
