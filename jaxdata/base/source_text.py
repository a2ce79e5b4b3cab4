"""Functions of the user's: found by their names, and what decides their results.

That is the source text of a function, and the values that it refers to.
"""

import ast
import dis
import hashlib
import importlib
import inspect
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError, digest, name_of

_INSTALLED = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")),
    *(path for path in sys.path if path.endswith("-packages")),
)


def is_place(name: str) -> bool:
    """Whether a name says `module:function`.

    >>> is_place("clean:english"), is_place("clean")
    (True, False)
    """
    module, colon, function = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


def function_named(place: str, argument: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules of the working folder are found too.

    Raises:
        InputError: by the name of the argument: it names no function, or cannot be imported.
    """
    if not is_place(place):
        raise InputError(f'{argument}{place!r}: expected "module:function", as in "clean:english"')
    module, _, name = place.partition(":")
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise InputError(
            f"{argument}{place!r}: {module!r} cannot be imported, from {Path.cwd()} or PYTHONPATH:"
            f"\n{users_traceback(error)}"
        ) from None
    made: Callable[..., Any] | None = getattr(found, name, None)
    if not callable(made):
        file = getattr(found, "__file__", None) or module
        raise InputError(f"{argument}{place!r}: {file} has no function {name!r}")
    return made


def users_traceback(error: Exception) -> str:
    """The traceback from the user's code on."""
    inner = (str(Path(__file__).parents[1]), "<frozen", importlib.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    outer = [frame for frame in frames if not frame.filename.startswith(inner)]
    lines = traceback.format_list(outer) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


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
    try:
        return digest(_Description().of(function, "itself"))
    except (OSError, TypeError, SyntaxError, _Unknown) as error:
        raise InputError(
            f"{name_of(function)}: {error}: nothing tells whether a run goes on with the same "
            "function. Expected one from a file or a notebook that refers to numbers, texts, "
            "arrays, lists and dicts of these, dataclasses and functions. Make what is else inside "
            "the function, or give it an attribute `fingerprint`, a text that you change when it "
            "does something else"
        ) from None


class _Unknown(Exception):
    """What something does cannot be read from its source."""


class _Description:
    """JSON values that describe a function and what it refers to."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, value: Any, place: str) -> Any:
        """Describe a value that the function has under the name `place`."""
        if isinstance(own := getattr(value, "fingerprint", None), str):
            return ["fingerprint", name_of(value).partition(":")[2], own]
        match value:
            case None | str() | int() | float():
                return value
            case bytes() | np.ndarray() | np.generic() if not np.asarray(value).dtype.hasobject:
                array = np.asarray(value)
                content = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
                return ["array", array.dtype.str, array.shape, content]
            case list() | tuple():
                return [type(value).__name__, *(self.of(each, place) for each in value)]
            case set() | frozenset():
                return ["set", *sorted(digest(self.of(each, place)) for each in value)]
            case Mapping():
                items = ([self.of(k, place), self.of(v, place)] for k, v in value.items())
                return ["dict", *items]
        if id(value) in self._seen:
            return ["again", self._seen[id(value)]]
        self._seen[id(value)] = len(self._seen)
        match value:
            case partial(func=function, args=args, keywords=named):
                return ["partial", *(self.of(each, place) for each in (function, args, named))]
            case MethodType(__self__=of, __func__=function):
                return ["method", self.of(of, place), self.of(function, place)]
            case _ if _is_installed(value):
                return ["installed", value.__name__, getattr(value, "__module__", None)]
            case FunctionType():
                given = inspect.signature(value).parameters.values()
                defaults = {each.name: each.default for each in given}
                defaults = {n: v for n, v in defaults.items() if v is not inspect.Parameter.empty}
                around = inspect.getclosurevars(value).nonlocals
                its = {n: v for n, v in value.__globals__.items() if n in _globals(value.__code__)}
                return ["function", _text(value), *map(self._named, (defaults, around, its))]
            case ModuleType() | type():
                own = vars(value).items() if isinstance(value, type) else ()
                methods = {n: f for n, f in own if isinstance(f, FunctionType) and _is_written(f)}
                return ["text", _text(value), self._named(methods)]
            case _ if is_dataclass(value):
                held = {each.name: getattr(value, each.name) for each in fields(value)}
                return ["dataclass", self.of(type(value), place), self._named(held)]
            case _ if callable(inner := getattr(value, "__wrapped__", None)):
                return ["wrapped", type(value).__qualname__, self.of(inner, place)]
        raise _Unknown(f"{place} is a {type(value).__name__}")

    def _named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.of(value, repr(name)) for name, value in sorted(values.items())}


def _text(value: Any) -> str:
    code = getattr(value, "__code__", value)
    if getattr(code, "co_name", "") != "<lambda>":
        return textwrap.dedent(inspect.getsource(code))
    file, line = "".join(inspect.findsource(code)[0]), code.co_firstlineno
    nodes = (node for node in ast.walk(ast.parse(file)) if isinstance(node, ast.Lambda))
    found = [node for node in nodes if node.lineno == line]
    if len(found) != 1:
        raise _Unknown(f"line {line} has {len(found)} lambdas (put each on a line, or use def)")
    return ast.get_source_segment(file, found[0]) or ""


def _is_written(function: FunctionType) -> bool:
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
