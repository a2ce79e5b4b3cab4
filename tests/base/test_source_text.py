"""What changes the digest of a function, what does not, and what cannot be told."""

import importlib
import re
import sys
import threading
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.base.errors import InputError, name_of
from jaxdata.base.source_text import source_digest

PLAIN = """
import numpy as np
import helpers
from helpers import least

LIMITS = {"short": [1, 2.5], "names": ("a", b"b", None)}
TABLE = np.arange(4)
UNUSED = object()


def inner(n):
    return n + 1


def keep(document, more=3):
    \"\"\"Whether it is kept.\"\"\"
    limits = [LIMITS["short"] for _ in range(2)]
    return inner(least(len(document["tokens"]))) > TABLE.sum() + more + helpers.other(limits)
"""
HELPERS = """
def least(n):
    return n


def other(limits):
    return len(limits)
"""


@pytest.fixture
def digest_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The digest of `keep` of a module of that text, and of that one beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    made = 0

    def find(text: str = PLAIN, helpers: str = HELPERS) -> str:
        nonlocal made
        made += 1
        module, beside = f"module_{made}", f"helpers_{made}"
        (tmp_path / f"{beside}.py").write_text(helpers)
        text = text.replace("import helpers", f"import {beside} as helpers")
        text = text.replace("from helpers", f"from {beside}")
        (tmp_path / f"{module}.py").write_text(text)
        importlib.invalidate_caches()
        found = source_digest(importlib.import_module(module).keep)
        for name in (module, beside):
            del sys.modules[name]
        return found

    return find


CHANGES = {
    "its text": ("+ more", "- more"),
    "a default": ("more=3", "more=4"),
    "a number that it names": ("2.5", "2.6"),
    "an array": ("arange(4)", "arange(5)"),
    "a function of its module": ("n + 1", "n + 2"),
    "one of a package": ("def inner(n):\n    return n + 1", "from math import ceil as inner"),
}  # fmt: skip


def test_what_it_names_is_part_of_it_and_nothing_else(digest_of: Any) -> None:
    plain = digest_of()
    assert plain == digest_of(), "whatever its module is called"
    assert plain == digest_of(PLAIN.replace("object()", "4"))
    for change, (before, after) in CHANGES.items():
        assert before in PLAIN
        assert digest_of(PLAIN.replace(before, after)) != plain, change
    for before, after in (("return n\n", "return 2 * n\n"), ("len(limits)", "0")):
        assert digest_of(helpers=HELPERS.replace(before, after)) != plain


@dataclass
class Longer:
    least: int

    def __call__(self, document: Any) -> bool:
        return len(document) > self.least


@lru_cache
def cached(document: Any) -> bool:
    return bool(document)


def around(least: Any) -> Any:
    def long(document: Any) -> bool:
        return least is not None and long(document)

    return long


def named(text: str) -> Any:
    def function(document: Any) -> Any:
        return document

    function.fingerprint = text  # type: ignore[attr-defined]
    return function


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "closures": (around(1), around(2)),
    "partials": (partial(cached, 1), partial(cached, 2)),
    "dataclasses": (Longer(1), Longer(2)),
    "methods": (Longer(1).__call__, Longer(2).__call__),
    "fingerprints": (named("1"), named("2")),
    "wrapped": (cached, lru_cache(around(1))),
}


def test_different_functions_differ_and_equal_ones_do_not() -> None:
    for what, (one, other) in DIFFERENT.items():
        first, second = map(source_digest, (one, other))
        assert first != second, what
        assert first == source_digest(one), what
    assert source_digest(around({3, 1, 2})) == source_digest(around({2, 3, 1}))
    assert source_digest(named("1")) == source_digest(named("1"))


def test_the_digest_of_a_function_stays() -> None:
    limits = [1, 2.5, "a", None, np.arange(3, dtype="<i8")]
    assert source_digest(partial(named("1"), limits=limits))[:16] == "442697f4de666cb3"


two = (lambda: 1, lambda: 2)
typed: dict[str, Any] = {}
exec("def typed(document): return document", typed)
REFUSED: dict[str, tuple[Any, str]] = {
    "an object": (around([threading.Lock()]), "'least' is a lock"),
    "a generator": (np.random.default_rng(0).random, "itself is a Generator"),
    "two lambdas": (two[0], r"line \d+ has 2 lambdas \(put each on a line, or use def\)"),
    "one typed at a prompt": (typed["typed"], "could not get source code"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_told_is_refused_in_words(what: str) -> None:
    function, problem = REFUSED[what]
    said = f"^{re.escape(name_of(function))}: {problem}: nothing tells whether a run goes on with "
    with pytest.raises(InputError, match=said):
        source_digest(function)
