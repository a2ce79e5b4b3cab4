"""Raw text to an indexed dataset, once.

A conversion is cut into units of work; each writes a shard and then, as its commit, a receipt.
From the receipts of all units come the index and, last, the manifest's entry. So a conversion that
was killed goes on where it stopped, and its bytes depend neither on that nor on the workers.

Public names resolve when first used: a worker starts in a third less time without what only its
parent needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxdata.convert.documents import texts
    from jaxdata.convert.options import Options
    from jaxdata.convert.report import ConversionReport
    from jaxdata.convert.run import convert

__all__ = ["ConversionReport", "Options", "convert", "texts"]

_PUBLIC = {
    "ConversionReport": "jaxdata.convert.report",
    "Options": "jaxdata.convert.options",
    "convert": "jaxdata.convert.run",
    "texts": "jaxdata.convert.documents",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'jaxdata.convert' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value
