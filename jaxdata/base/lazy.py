"""Public names and modules that resolve when first used, so that importing a package is instant."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from jaxdata.base.wording import nearest


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


@cache
def import_all(package: str) -> None:
    """Import every module of a package: each registers what it has."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
