"""jaxdata: from raw text to packed, mixed and elastic training batches for language models.

Raw text becomes an indexed dataset once; after that, row *i* of training is a pure function of
(dataset, config, *i*). Public names resolve on first use: importing the package is instant and
imports neither grain nor jax.

The house, from the ground up; a room imports only from rooms above it in this list
(tests/test_imports.py):

    base                        errors, seeds, hashes, settings, processes: stdlib and numpy
    storage                     folders, buckets, the page cache of a host: bytes by name and range
    tokenizers                  text to token ids and back
    dataset                     the format: index, shards, manifest, views, other tools' files
    converter                   text to a dataset
    dedup                       which documents are copies
    rows                        a table of rows: packing, mixing, pairs, Megatron's order
    feed                        rows to batches: Loader, state, layouts, devices
    foreign, streaming,         other tools' files and parameters; text without a dataset;
    testing                     proofs of a run and of a trainer
    config                      YAML to rows and a Loader
    look                        what people look at: inspect, plan, trace, report, top
    torch, train                the same for torch's programs; a small trainer, and the demo
    clients, cli                ways into other people's trainers; the commands
"""

from typing import TYPE_CHECKING

from jaxdata.base import errors
from jaxdata.base.lazy import resolver
from jaxdata.base.version import VERSION

if TYPE_CHECKING:  # for type checkers: the names that __getattr__ resolves
    from jaxdata.base.errors import (
        ConfigError as ConfigError,
        DatasetError as DatasetError,
        InputError as InputError,
        JaxdataError as JaxdataError,
        MissingExtra as MissingExtra,
        SourceExhausted as SourceExhausted,
        StateMismatch as StateMismatch,
        WorkerDied as WorkerDied,
    )
    from jaxdata.clients.losses import losses_by_source as losses_by_source
    from jaxdata.config import load as load
    from jaxdata.converter.conversion import convert as convert
    from jaxdata.dataset.array_documents import ArrayDocuments as ArrayDocuments
    from jaxdata.dataset.opening import open_dataset as open_dataset
    from jaxdata.dataset.views.selecting import select as select
    from jaxdata.dedup.api import deduplicate as deduplicate
    from jaxdata.feed.checkpoint import LoaderRestore as LoaderRestore, LoaderSave as LoaderSave
    from jaxdata.feed.loader import Loader as Loader
    from jaxdata.feed.steering import WeightsFile as WeightsFile
    from jaxdata.foreign.export import export as export
    from jaxdata.foreign.materialize import materialize as materialize, open_rows as open_rows
    from jaxdata.look.document import show_batch as show_batch
    from jaxdata.rows.map_datasets import (
        evaluation_rows as evaluation_rows,
        mix as mix,
        pack as pack,
    )
    from jaxdata.rows.mixing.phases import Phase as Phase
    from jaxdata.rows.pairs import pairs as pairs
    from jaxdata.streaming.api import stream_text as stream_text

_PUBLIC = {
    "ArrayDocuments": "jaxdata.dataset.array_documents",
    "Loader": "jaxdata.feed.loader",
    "LoaderRestore": "jaxdata.feed.checkpoint",
    "LoaderSave": "jaxdata.feed.checkpoint",
    "Phase": "jaxdata.rows.mixing.phases",
    "WeightsFile": "jaxdata.feed.steering",
    "convert": "jaxdata.converter.conversion",
    "deduplicate": "jaxdata.dedup.api",
    "evaluation_rows": "jaxdata.rows.map_datasets",
    "export": "jaxdata.foreign.export",
    "load": "jaxdata.config",
    "losses_by_source": "jaxdata.clients.losses",
    "materialize": "jaxdata.foreign.materialize",
    "mix": "jaxdata.rows.map_datasets",
    "open_dataset": "jaxdata.dataset.opening",
    "open_rows": "jaxdata.foreign.materialize",
    "pack": "jaxdata.rows.map_datasets",
    "pairs": "jaxdata.rows.pairs",
    "select": "jaxdata.dataset.views.selecting",
    "show_batch": "jaxdata.look.document",
    "stream_text": "jaxdata.streaming.api",
    **dict.fromkeys(errors.__all__, "jaxdata.base.errors"),
}

_ROOMS = {"errors": "jaxdata.base", "megatron": "jaxdata.rows"}
"""modules with public names of their own that go by a short name, and where they lie"""

__all__ = sorted(_PUBLIC)
__version__ = VERSION

__getattr__ = resolver(__name__, _PUBLIC, _ROOMS)


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, *_ROOMS, "__version__"})
