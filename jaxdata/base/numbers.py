"""Numbers of numpy, jax and torch as Python's own, and names of a few, in public functions.

What a caller passes goes into seeds, JSON states and exact arithmetic, where `np.int64(1)` would be
another thing than `1`.
"""

import functools
import inspect
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from jaxdata.base.errors import InputError, either, nearest, shortened

F = TypeVar("F", bound=Callable[..., Any])

_BITS = 64
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter, MappingProxyType)
_NUMBERS = {int, float, bool}
_SOMEWHERE = list[float]  # of arguments of `**`, which may hold numbers
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    tuple[int, int]: "two whole numbers",
    NoneType: "None",
}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "below"}
_KINDS = {
    "bool_type": "true or false",
    "dict_type": "a mapping, like {web: 0.6, code: 0.4}",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a section with fields",
    "string_type": "a text",
}
Positive = Annotated[int, Field(ge=1)]


def plain(value: Any) -> Any:
    """A value with Python's own numbers, flags and texts for those of numpy, in containers too.

    A float is the decimal that it is written as, whatever its precision.

    Raises:
        InputError: there is a whole number of more than 64 bits in it.

    >>> plain({"rows": np.int64(3), "mix": [np.float32(0.1), np.True_]})
    {'rows': 3, 'mix': [0.1, True]}
    """
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if type(value) in _MAPPINGS:
        return {plain(key): plain(inner) for key, inner in value.items()}
    scalar: Any = np.asarray(value)[()] if getattr(value, "shape", None) == () else None
    if isinstance(scalar, np.generic):
        value = float(str(scalar)) if isinstance(scalar, np.floating) else scalar.item()
    if type(value) is int and value.bit_length() > _BITS:
        raise InputError(f"a whole number of {value.bit_length():,} bits: expected at most {_BITS}")
    return value


def validated(function: F) -> F:
    """Have a function take the numbers of numpy, jax and torch, and refuse what is no number.

    Arguments whose types have numbers in them, and those of `**`, become Python's own. Where a type
    is a number, or a `Literal`, and nothing else, pydantic validates it, strictly: no float is an
    `int`, not even a whole one, and no flag or text a number.

    Raises:
        InputError: by the function, where an argument is of another type; its name is in there.

    >>> @validated
    ... def times(count: int, of: int | None = None): return count
    >>> times(np.int64(3))
    3
    >>> times(3.0)
    Traceback (most recent call last):
    jaxdata.base.errors.InputError: count=3.0: expected a whole number
    """
    types: dict[str, Any] = {}

    @functools.wraps(function)
    def called(*given: Any, **named: Any) -> Any:
        if not types:
            types.update(types_of(function))
        pairs = zip(types, given, strict=False)
        taken = [_taken(name, value, types[name]) for name, value in pairs]
        for name, value in named.items():
            if name not in types and "**" not in types:
                raise TypeError(
                    f"{function.__qualname__}() got an unexpected keyword argument {name!r}"
                    f"{nearest(name, types)}"
                )
            named[name] = _taken(name, value, types.get(name, _SOMEWHERE))
        return function(*taken, *given[len(taken) :], **named)

    return called  # type: ignore[return-value]


def types_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of each argument of a function; `Any` where only type checkers know its names."""
    names, found = inspect.unwrap(function).__globals__, dict[str, Any]()
    for each in inspect.signature(function).parameters.values():
        alone = SimpleNamespace(__annotations__={"hint": each.annotation})
        try:
            hint = get_type_hints(alone, names, include_extras=True)["hint"]
        except (NameError, AttributeError):
            hint = Any
        found["**" if each.kind is each.VAR_KEYWORD else each.name] = hint
    return found


def _taken(name: str, value: Any, hint: Any) -> Any:
    named = any(get_origin(kind) is Literal for kind in kinds_of(hint))
    if not (named or _NUMBERS & {*_parts(hint)}):
        return value
    try:
        found = plain(value)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if words := in_words(hint):
        try:
            _adapter(hint).validate_python(tuple(found) if type(found) is list else found)
        except ValidationError as error:
            problem = {**error.errors(include_url=False)[0], "input": found}
            raise InputError(explained(problem, name, words)) from None
    return found


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(strict=True))


def _parts(hint: Any) -> list[Any]:
    inner = hint if isinstance(hint, list) else get_args(hint)  # a list: what a callable takes
    return [part for each in inner for part in _parts(each)] if inner else [hint]


def kinds_of(hint: Any) -> list[Any]:
    """The types of a value, None's own among them.

    >>> kinds_of(int | None)
    [<class 'int'>, <class 'NoneType'>]
    """
    if get_origin(hint) is Annotated:
        return kinds_of(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [kind for each in get_args(hint) for kind in kinds_of(each)]
    return [hint]


def in_words(hint: Any) -> str | None:
    """What a value of a type of numbers and texts is; None of other types.

    >>> in_words(float | str | None), in_words(Literal["a", "b", "c"])
    ('a number or a text or None', "'a', 'b' or 'c'")
    """
    words = []
    for kind in kinds_of(hint):
        if get_origin(kind) is Literal:
            words.append(either(get_args(kind)))
        elif kind in _WORDS:
            words.append(_WORDS[kind])
        else:
            return None
    return " or ".join(words)


def explained(problem: Mapping[str, Any], name: str, words: str | None = None) -> str:
    """What pydantic found wrong with a field of a name; `words` say what its values are."""
    kind, context, message = problem["type"], problem.get("ctx", {}), str(problem["msg"])
    if kind == "value_error":
        message = str(context["error"])
        return f"{name}: {message}" if name else message
    if kind == "missing":
        return f"{name} is missing: it is required"
    if not name:
        return message
    bounds = [f"{says} {_short(context[key])}" for key, says in _BOUNDS.items() if key in context]
    names = context.get("expected") if kind == "literal_error" else None
    says = next(filter(None, (*bounds, names, words, _KINDS.get(kind))), None)
    expected = f"expected {says}" if says else message.replace("Input should be", "expected")
    return f"{name}={shortened(repr(problem['input']))}: {expected}"


def _short(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def is_number(value: Any) -> bool:
    """Tell whether a value is a number, which a flag is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, which a flag is not.

    >>> [is_whole(value) for value in (3, 3.0, True, "3")]
    [True, False, False, False]
    """
    return isinstance(value, int) and not isinstance(value, bool)
