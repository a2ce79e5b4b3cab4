"""From a config to rows and to a loader of batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxdata
from jaxdata.config.models import Config
from jaxdata.config.reading import load_config
from jaxdata.config.recipes import curriculum_rows
from jaxdata.errors import ConfigError

if TYPE_CHECKING:
    from jaxdata.feed.loader import Loader
    from jaxdata.rows.sources import Sources

__all__ = ["build_rows", "load", "loader_arguments", "open_data"]


def load(
    config: str | Path | Mapping[str, Any] | Config,
    split: str | None = None,
    *,
    sharding: Any = None,
    shard: tuple[int, int] | None = None,
    **overrides: Any,
) -> Loader:
    """Open the loader that a config describes.

    Args:
        config: a YAML file, the name of a config that comes with jaxdata, a mapping or a `Config`.
        split: the curriculum's split where not given; of any other split, every source comes
            once, in dataset order, up to `eval_tokens`.
        sharding: a `jax.sharding.Sharding` of (batch, seq), for global `jax.Array`s; or:
        shard: `(i, n)`, for numpy arrays of the i-th of n parts of each batch.
        overrides: fields of the config, nested (`pack={"seq_len": 4096}`) or by dotted names
            (`**{"pack.seq_len": 4096}`).

    Raises:
        ConfigError: a field is unknown, of the wrong type, or names no source of the dataset.
    """
    settings = load_config(config, overrides)
    loader: Loader = jaxdata.Loader(
        build_rows(settings, split),
        sharding=sharding,
        shard=shard,
        expand=settings.loader.expand if sharding is not None else "host",
        **loader_arguments(settings, split),
    )
    return loader


def open_data(config: Config) -> Sources:
    """The dataset of a config; where it names several, their sources as one."""
    from jaxdata.format.foreign import is_foreign
    from jaxdata.rows.joined import JoinedDataset, source_meant

    paths = [one.dataset for one in (config.sources or {}).values()] or [str(config.dataset)]
    if config.tokenizer is not None and not any(map(is_foreign, paths)):
        raise ConfigError(
            f"tokenizer={config.tokenizer!r} is for other tools' data; {', '.join(paths)} brings "
            "its own: leave it out"
        )
    if config.sources is None:
        return _open(str(config.dataset), config.tokenizer)
    opened = {
        name: _open(one.dataset, config.tokenizer, one.eod_id)
        for name, one in config.sources.items()
    }
    meant = {
        name: (opened[name], source_meant(opened[name], name, one.source))
        for name, one in config.sources.items()
    }
    return JoinedDataset(meant, config.tokenizer)


def _open(path: str, tokenizer: str | None, eod_id: int | None = None) -> Sources:
    from jaxdata.format.foreign import is_foreign
    from jaxdata.rows.dataset import open_dataset

    return open_dataset(path, tokenizer=tokenizer if is_foreign(path) else None, eod_id=eod_id)


def loader_arguments(config: Config, split: str | None = None) -> dict[str, Any]:
    """How a split is read, as arguments of a loader; where its batches go is not among them."""
    given, training = config.loader, split in (None, config.split)
    return {
        "batch_size": given.batch_size if training else _eval_batch_size(config),
        "num_workers": given.num_workers if training else 0,
        "prefetch": given.prefetch,
        "drop_remainder": given.drop_remainder and training,
        "skip_rows": [(a, b) for a, b in given.skip_rows] if training else (),
        "layout": given.layout,
        "extras": given.extras,
    }


def _eval_batch_size(config: Config) -> int:
    return config.eval_batch_size or config.loader.first_batch_size


def build_rows(config: Config, split: str | None = None, *, shuffle: bool = True) -> Any:
    """The rows of a split, a `grain.MapDataset`: the curriculum's mixture, or evaluation rows.

    Without `shuffle` the curriculum's split is read as others are: every source once, in the
    order of the dataset; all of it.
    """
    dataset = open_data(config)
    training = split in (None, config.split)
    if training and shuffle:
        return curriculum_rows(dataset, config)
    pack = config.pack.model_dump(exclude={"block", "shuffle_run"})
    most = None if training else config.eval_tokens
    return jaxdata.evaluation_rows(dataset, split or config.split, eval_tokens=most, **pack)
