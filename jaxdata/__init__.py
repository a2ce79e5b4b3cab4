"""jaxdata: raw text to exact, packed, mixed, elastic training batches for language models.

Raw text becomes an indexed dataset once; after that, row *i* of training is a pure function of
(dataset, config, *i*). Public names resolve when first used: importing the package is instant and
brings in neither grain nor jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jaxdata import errors

if TYPE_CHECKING:  # what __getattr__ gives, for those who read the code only
    from jaxdata.config import load as load
    from jaxdata.errors import ConfigError as ConfigError
    from jaxdata.errors import DatasetError as DatasetError
    from jaxdata.errors import InputError as InputError
    from jaxdata.errors import JaxdataError as JaxdataError
    from jaxdata.errors import MissingExtra as MissingExtra
    from jaxdata.errors import SourceExhausted as SourceExhausted
    from jaxdata.errors import StateMismatch as StateMismatch
    from jaxdata.errors import WorkerDied as WorkerDied
    from jaxdata.feed.checkpoint import LoaderRestore as LoaderRestore
    from jaxdata.feed.checkpoint import LoaderSave as LoaderSave
    from jaxdata.feed.loader import Loader as Loader
    from jaxdata.make.export import export as export
    from jaxdata.make.materialize import materialize as materialize
    from jaxdata.make.materialize.reading import open_rows as open_rows
    from jaxdata.make.stream import stream_text as stream_text
    from jaxdata.rows.dataset import open_dataset as open_dataset
    from jaxdata.rows.datasets import evaluation_rows as evaluation_rows
    from jaxdata.rows.datasets import mix as mix
    from jaxdata.rows.datasets import pack as pack
    from jaxdata.rows.documents import ArrayDocuments as ArrayDocuments
    from jaxdata.rows.pairs import pairs as pairs
    from jaxdata.rows.phases import Phase as Phase

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
