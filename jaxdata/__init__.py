"""jaxdata: raw text to exact, packed, mixed, elastic training batches for language models.

Raw text becomes an indexed dataset once; after that, row *i* of training is a pure function of
(dataset, config, *i*). Public names resolve when first used: importing the package is instant and
brings in neither grain nor jax.
"""

from __future__ import annotations

import importlib
from typing import Any

from jaxdata import errors

_PUBLIC = {
    "ArrayDocuments": "jaxdata.rows.documents",
    "Loader": "jaxdata.feed.loader",
    "LoaderRestore": "jaxdata.feed.checkpoint",
    "LoaderSave": "jaxdata.feed.checkpoint",
    "Phase": "jaxdata.rows.phases",
    "evaluation_rows": "jaxdata.rows.datasets",
    "export": "jaxdata.make.export",
    "load": "jaxdata.config",
    "materialize": "jaxdata.make.materialize",
    "mix": "jaxdata.rows.datasets",
    "open_dataset": "jaxdata.rows.dataset",
    "open_rows": "jaxdata.make.materialize.reading",
    "pack": "jaxdata.rows.datasets",
    "pairs": "jaxdata.rows.pairs",
    "stream_text": "jaxdata.make.stream",
    **dict.fromkeys(errors.__all__, "jaxdata.errors"),
}

_EDGES = ("megatron", "torch")
"""modules with names of their own, imported when first used"""

__all__ = sorted(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _EDGES:
        return importlib.import_module(f"jaxdata.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'jaxdata' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, *_EDGES])
