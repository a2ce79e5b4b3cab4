"""Public names that resolve when first used, so that importing a package is instant."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def resolver(package: str, public: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `public` maps each name to the module that defines it."""

    def resolve(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(public[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve
