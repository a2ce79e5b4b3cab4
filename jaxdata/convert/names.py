"""What splits and sources may be called."""

from __future__ import annotations

import re

from jaxdata.errors import InputError
from jaxdata.format.manifest import MANIFEST

__all__ = ["check_name"]


def check_name(role: str, name: str) -> None:
    """Raise InputError unless a name can be a folder (or, with "/", several) of a dataset."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*", name):
        raise InputError(
            f"--{role} {name!r} cannot be a folder of a dataset; "
            "use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    if role == "split" and "/" in name:
        raise InputError(f"--split {name!r} has a '/'; only the names of sources may")
    if {MANIFEST, "tokenizer", "index", "work"} & set(name.split("/")):
        raise InputError(f"--{role} {name!r} is a name that datasets keep for themselves")
