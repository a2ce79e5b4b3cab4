"""What decides the results of a function: its source text, and the values that it refers to."""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.facts import digest

_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")),
    *(path for path in sys.path if path.endswith("-packages")),
)


def name_of(function: Any) -> str:
    """What people call a function: `module:name`; a `partial` by what it calls.

    >>> name_of(partial(np.flip, axis=0))
    'numpy:flip'
    """
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def source_digest(function: Any) -> str:
    """A digest that changes where a function may do something else, in hex.

    It covers the text of the function, its defaults, what it has from the functions around it, and
    the globals that it names: numbers, texts, arrays, lists and dicts of such, dataclasses;
    functions, classes and modules by their text, installed ones by name. Neither the module nor the
    file of the function is in it. Of what has a text `fingerprint`, that counts and nothing else.

    Raises:
        InputError: the text cannot be read, or the function refers to something else.

    >>> source_digest(partial(name_of, 3)) == source_digest(partial(name_of, 4))
    False
    """
    return digest(_Description(name_of(function)).of(function, "itself"))


class _Description:
    """JSON values that describe a function and what it refers to."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._seen: dict[int, int] = {}

    def of(self, value: Any, place: str) -> Any:
        """Describe a value that the function has under the name `place`."""
        if isinstance(own := getattr(value, "fingerprint", None), str):
            return ["fingerprint", name_of(value).partition(":")[2], own]
        if value is None or isinstance(value, str | int | float):
            return value
        if isinstance(value, bytes | np.ndarray | np.generic):
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise self._refusal(value, place)
            content = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
            return ["array", array.dtype.str, array.shape, content]
        if isinstance(value, list | tuple):
            return [type(value).__name__, *(self.of(each, place) for each in value)]
        if isinstance(value, set | frozenset):
            return ["set", *sorted(digest(self.of(each, place)) for each in value)]
        if isinstance(value, Mapping):
            items = value.items()
            return ["dict", *([self.of(k, place), self.of(each, place)] for k, each in items)]
        return self._code(value, place)

    def _code(self, value: Any, place: str) -> Any:
        """Describe a function, a class, a module, or an object that consists of fields."""
        if id(value) in self._seen:
            return ["again", self._seen[id(value)]]
        self._seen[id(value)] = len(self._seen)
        if isinstance(value, partial):
            parts = (value.func, value.args, value.keywords)
            return ["partial", *(self.of(each, place) for each in parts)]
        if isinstance(value, MethodType):
            return ["method", *(self.of(each, place) for each in (value.__self__, value.__func__))]
        if _is_installed(value):
            return ["installed", value.__name__, getattr(value, "__module__", None)]
        if isinstance(value, FunctionType):
            return ["function", self._text(value), *map(self._named, _values(value))]
        if isinstance(value, ModuleType | type):
            own = vars(value) if isinstance(value, type) else {}
            written = {n: f for n, f in own.items() if isinstance(f, FunctionType) and _is_text(f)}
            return ["text", self._text(value), self._named(written)]
        if is_dataclass(value):
            held = {each.name: getattr(value, each.name) for each in fields(value)}
            return ["dataclass", self.of(type(value), place), self._named(held)]
        if callable(inner := getattr(value, "__wrapped__", None)):
            return ["wrapped", type(value).__qualname__, self.of(inner, place)]
        raise self._refusal(value, place)

    def _named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.of(value, name) for name, value in sorted(values.items())}

    def _refusal(self, value: Any, place: str) -> InputError:
        refers = "it is" if place == "itself" else f"it refers to {place!r},"
        return InputError(
            f"{self._function}: {refers} a {type(value).__name__}, and what that does cannot be "
            "read from its source: expected numbers, texts, arrays, lists and dicts of these, "
            "dataclasses and functions. Make it inside the function, or give it an attribute "
            "`fingerprint`, a text that you change when it does something else"
        )

    def _text(self, value: Any) -> str:
        code = getattr(value, "__code__", value)
        try:
            if getattr(code, "co_name", "") == "<lambda>":
                return self._lambda("".join(inspect.findsource(code)[0]), code.co_firstlineno)
            return textwrap.dedent(inspect.getsource(code))
        except (OSError, TypeError, SyntaxError) as error:
            raise InputError(
                f"{self._function}: its source text cannot be read ({error}), which tells whether "
                "a run goes on with the same function: define it in a file or in a notebook, or "
                "give it an attribute `fingerprint`, a text that you change when it does something "
                "else"
            ) from None

    def _lambda(self, file: str, line: int) -> str:
        nodes = (node for node in ast.walk(ast.parse(file)) if isinstance(node, ast.Lambda))
        found = [node for node in nodes if node.lineno == line]
        if len(found) != 1:
            raise InputError(
                f"{self._function}: line {line} has {len(found)} lambdas, and which one is meant "
                "cannot be read from the source: put each on a line of its own, or use def"
            )
        return ast.get_source_segment(file, found[0]) or ""


def _values(function: FunctionType) -> Iterator[Mapping[str, Any]]:
    """Defaults of a function, what it has from the functions around it, and its globals."""
    code = function.__code__
    parameters = inspect.signature(function).parameters.values()
    yield {each.name: each.default for each in parameters if each.default is not each.empty}
    yield inspect.getclosurevars(function).nonlocals
    yield {n: function.__globals__[n] for n in _globals(code) if n in function.__globals__}


def _is_text(function: FunctionType) -> bool:
    """Whether the user wrote it; a dataclass generates methods from its fields."""
    return not function.__code__.co_filename.startswith(("<string>", *_INSTALLED))


def _globals(code: CodeType) -> set[str]:
    """Names that some code, or code in it, looks up in its module."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return names.union(*map(_globals, inner))


def _is_installed(value: Any) -> bool:
    """Whether something comes with Python, or from a package; jaxdata is one wherever it lies."""
    if not hasattr(value, "__name__"):
        return False
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    module = sys.modules.get(name or "")
    if module is None or name == "__main__":
        return False
    file = getattr(module, "__file__", None)
    return file is None or file.startswith(_INSTALLED) or str(name).split(".")[0] == "jaxdata"
