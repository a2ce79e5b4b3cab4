"""From a config to rows and to a loader of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdata.config.config_fields import Config
from jaxdata.config.config_reader import load_config
from jaxdata.config.storage_section import use_storage
from jaxdata.errors import ConfigError
from jaxdata.packing.settings import RowArguments
from jaxdata.wording import nearest

if TYPE_CHECKING:
    from jaxdata.documents.dataset import Dataset
    from jaxdata.feed.loader import Loader


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
        config: a YAML file, the name of a config shipped with jaxdata, a mapping or a `Config`.
        split: by default the training split; any other split gives every source once, in
            dataset order, up to `eval_tokens`.
        sharding: a `jax.sharding.Sharding` of (batch, seq), for global `jax.Array`s; or:
        shard: `(i, n)`, for numpy arrays of the i-th of n parts of each batch.
        overrides: fields of the config, nested (`pack={"seq_len": 4096}`) or by dotted names
            (`**{"pack.seq_len": 4096}`).

    Raises:
        ConfigError: a field is unknown, of the wrong type, or names no source of the dataset.
    """
    from jaxdata.feed.loader import Loader

    settings = load_config(config, overrides)
    return Loader(
        build_rows(settings, split),
        sharding=sharding,
        shard=shard,
        expand=settings.loader.expand if sharding is not None else "host",
        **loader_arguments(settings, split),
    )


def open_data(config: Config) -> Dataset:
    """The dataset of a config; several are joined into one, training reads the views it names."""
    dataset = _all_data(config)
    views = _views(config, dataset.splits.get(config.split, []) if _names_views(config) else [])
    return dataset.with_views({f"{config.split}/{name}": view for name, view in views.items()})


def unscored(config: Config, dataset: Dataset) -> str:
    """Why a model is not scored, where that is not asked for; "" where it is scored.

    Raises:
        ConfigError: the config names a split to score on, and the dataset has others.
    """
    split = config.eval_split
    if split is None or split in dataset.splits:
        return ""
    others = [name for name in dataset.splits if name != config.split]
    if others and "eval_split" in config.model_fields_set:
        raise ConfigError(
            f"eval_split is {split!r}; {dataset.url} has {', '.join(map(repr, others))} to score "
            f"on: name one, or null for none{nearest(split, others)}"
        )
    return (
        f"{dataset.url} has no split {split!r}: nothing is scored. Convert some documents with "
        f"--split {split}, or set eval_split to null"
    )


def _names_views(config: Config) -> bool:
    own = (one.documents for one in (config.sources or {}).values())
    return bool(config.documents) or any(own)


def _views(config: Config, names: Sequence[str]) -> dict[str, str]:
    """The view of each source of the training split that has one."""
    given = config.documents or {}
    views = dict.fromkeys(names, given) if isinstance(given, str) else dict(given)
    own = {name: one.documents for name, one in (config.sources or {}).items()}
    return views | {name: view for name, view in own.items() if view is not None and name in names}


def _all_data(config: Config) -> Dataset:
    from jaxdata.documents.joined import JoinedDataset, source_meant
    from jaxdata.format.foreign import is_foreign

    use_storage(config.storage)
    paths = [one.dataset for one in (config.sources or {}).values()] or [str(config.dataset)]
    if config.tokenizer is not None and not any(map(is_foreign, paths)):
        raise ConfigError(
            f"tokenizer={config.tokenizer!r} is for other tools' data; {', '.join(paths)} has its "
            "own tokenizer: remove `tokenizer`"
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


def _open(path: str, tokenizer: str | None, eod_id: int | None = None) -> Dataset:
    from jaxdata.documents.converted_dataset import open_dataset
    from jaxdata.format.foreign import is_foreign

    return open_dataset(path, tokenizer=tokenizer if is_foreign(path) else None, eod_id=eod_id)


def loader_arguments(config: Config, split: str | None = None) -> dict[str, Any]:
    """The arguments of a split's loader, without `sharding` and `shard`."""
    given, training = config.loader, split in (None, config.split)
    evaluated = config.eval_batch_size or given.first_batch_size
    return {
        "batch_size": given.batch_size if training else evaluated,
        "num_workers": given.num_workers if training else 0,
        "prefetch": given.prefetch,
        "drop_remainder": given.drop_remainder and training,
        "skip_rows": [(a, b) for a, b in given.skip_rows] if training else (),
        "layout": given.layout,
        "extras": given.extras,
        "reiterable": given.reiterable,
    }


def build_rows(config: Config, split: str | None = None, *, shuffle: bool = True) -> Any:
    """The rows of a split, a `grain.MapDataset`: the training mixture, or evaluation rows.

    Without `shuffle` the training split gives every source once, whole, in dataset order.
    """
    from jaxdata.config.training_rows import curriculum_rows
    from jaxdata.map_datasets import evaluation_rows

    dataset = open_data(config)
    training = split in (None, config.split)
    if training and shuffle:
        return curriculum_rows(dataset, config)
    pack = config.pack.model_dump(include={"seq_len", *RowArguments.__annotations__})
    most = None if training else config.eval_tokens
    return evaluation_rows(dataset, split or config.split, eval_tokens=most, **pack)
