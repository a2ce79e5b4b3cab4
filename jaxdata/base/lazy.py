"""Names, modules and values that are made when first used, so that an import is instant."""

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, TypeVar

from jaxdata.base.errors import nearest

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801, TID251  # as functools'
    """The same without a lock, as from Python 3.12 on.

    Before, one thread at a time computes a property, of whichever object: a forked copy of the
    process would wait forever for a thread that computed one, and is not in the copy.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        super().__init__(function)
        self.lock = nullcontext()


def resolver(
    package: str,
    public: Mapping[str, str] = MappingProxyType({}),
    rooms: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    `public` maps each name to the module that defines it, `rooms` each module that goes by a short
    name to the package that holds it; modules of the package resolve, too.
    """

    def resolve(name: str) -> Any:
        if name in public:
            value = getattr(importlib.import_module(public[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        if name in rooms:
            return importlib.import_module(f"{rooms[name]}.{name}")
        if not name.startswith("_") and find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}{nearest(name, public)}")

    return resolve


@functools.cache
def import_all(package: str) -> None:
    """Import every module of a package: each registers what it has."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
