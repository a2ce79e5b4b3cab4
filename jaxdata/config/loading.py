"""From a config to its mixture, with its curriculum and amendments, and to a loader of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdata.base.errors import ConfigError, InputError
from jaxdata.base.wording import nearest
from jaxdata.config.config_fields import AmendmentSection, Config, PhaseSection
from jaxdata.config.config_reader import load_config
from jaxdata.config.storage_section import use_storage
from jaxdata.dataset.contract import Dataset, source_names
from jaxdata.feed.layouts import imported
from jaxdata.feed.loader import Loader
from jaxdata.rows.map_datasets import MixedDataset, mix, pack
from jaxdata.rows.mixing.phases import Phase, Weights
from jaxdata.rows.packing.dealing import resolved
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.settings import PackSettings

if TYPE_CHECKING:
    from jaxdata.dataset.contract import Dataset
    from jaxdata.feed.loader import Loader


def next_amendments(
    mixed: Any, pending: Mapping[int, AmendmentSection], config: Config
) -> tuple[int, list[int]]:
    """The row of the next amendments, and their numbers: several at one row count as one.

    Args:
        mixed: the rows, with all amendments made that begin before.
        pending: the other ones, by their numbers in the list.
        config: for the batch sizes that an `at_step` counts by.
    """
    loader = _loader(mixed, config)
    rows = {number: _row(loader, each) for number, each in pending.items()}
    known = [row for row in rows.values() if row is not None]
    if not known:  # steps that no row of the run has, nor will have
        number, section = next(iter(pending.items()))
        raise ConfigError(
            f"amendments.{number}: cannot seek to step {section.at_step}: the steps are 0 to "
            f"{len(loader)}"
        )
    return min(known), [number for number, row in rows.items() if row == min(known)]


def packing_of(sections: Iterable[AmendmentSection]) -> dict[str, Any]:
    """The fields of packing that some amendments set."""
    return {
        name: value
        for each in sections
        if each.pack is not None
        for name, value in each.pack.model_dump(exclude_unset=True).items()
    }


def _row(loader: Loader, section: AmendmentSection) -> int | None:
    """Where an amendment begins; None for a step after the end, which others may yet move.

    No amendment from that row on can move it, as batches before it stay as they are.
    """
    if section.at_step is None:
        return section.at_row
    if section.at_step > len(loader):
        return None
    loader.seek(step=section.at_step)
    return loader.next_row


def _loader(mixed: Any, config: Config) -> Loader:
    skips = [(a, min(b, len(mixed))) for a, b in config.loader.skip_rows if a < len(mixed)]
    return Loader(mixed, batch_size=config.loader.batch_size, skip_rows=skips)


Phases = Sequence[PhaseSection] | None


def curriculum_rows(dataset: Dataset, config: Config) -> Any:
    """The rows of the training split, as `jaxdata.mix` returns them."""
    names = source_names(dataset, config.split)
    _check_names(config, names, dataset.url)
    settings = config.pack.model_dump()
    mixed = mix(
        _packed(dataset, config, settings, _weighed(config.curriculum, names)),
        phases=_phases(config.curriculum),
        epochs=config.epochs,
        on_exhaustion=config.on_exhaustion,
        weigh_by=config.weigh_by,
    )
    pending = dict(enumerate(config.amendments))
    while pending:
        row, numbers = next_amendments(mixed, pending, config)
        sections = [pending.pop(number) for number in numbers]
        settings |= packing_of(sections)
        try:
            mixed = _amended(mixed, row, sections, dataset, config, settings)
        except InputError as error:
            where = ", ".join(f"amendments.{number}" for number in numbers)
            raise ConfigError(f"{where}: {error}") from None
    return mixed


def _amended(
    mixed: MixedDataset,
    row: int,
    sections: Sequence[AmendmentSection],
    dataset: Dataset,
    config: Config,
    settings: dict[str, Any],
) -> MixedDataset:
    """The mixture with the amendments at a row; the last wins where several set the same."""
    curriculum = next((each.curriculum for each in reversed(sections) if each.curriculum), None)
    weights = next((each.mix for each in reversed(sections) if each.mix), None)
    on_exhaustion = [each.on_exhaustion for each in sections if each.on_exhaustion]
    names, known = source_names(dataset, config.split), mixed.sources
    wanted = _weighed(curriculum, names) if curriculum else list(known)
    wanted += [name for name in _of_mix(weights or {}, ()) if name not in wanted]
    packing = PackSettings.checked(seed=config.seed, **settings)
    given = [
        name
        for name in wanted
        if packing_of(sections) or name not in known or _differs(known[name].table, packing)
    ]
    return mixed.amend(
        row,
        rows=_packed(dataset, config, settings, given),
        phases=_phases(curriculum),
        weights=weights,
        epochs={name: times for each in sections for name, times in each.epochs.items()} or None,
        on_exhaustion=on_exhaustion[-1] if on_exhaustion else None,
    )


def _differs(table: PackedRows, packing: PackSettings) -> bool:
    """Whether a source is not packed like that."""
    return table.settings != resolved(table.documents[0], packing)


def sources_read(names: list[str], config: Config) -> list[str]:
    """The sources of a split that a config trains on, before or after its amendments."""
    read = set(_weighed(config.curriculum, names))
    for amendment in config.amendments:
        read |= set(_weighed(amendment.curriculum, names) if amendment.curriculum else [])
        read |= set(_of_mix(amendment.mix or {}, ()))
    return [name for name in names if name in read]


def _packed(dataset: Dataset, config: Config, settings: dict[str, Any], names: list[str]) -> Any:
    return {
        name: pack(
            dataset.source(config.split, name, generation=config.generations.get(name)),
            seed=config.seed,
            **settings,
        )
        for name in names
    }


def _phases(curriculum: Phases) -> list[Phase] | None:
    return None if curriculum is None else [phase.phase() for phase in curriculum]


def _weighed(curriculum: Phases, names: list[str]) -> list[str]:
    """The sources that the phases weigh; all of them if a rule does."""
    if curriculum is None:
        return names
    wanted = {name for phase in curriculum for name in _of_mix(phase.mix, names)}
    return [name for name in names if name in wanted]


def _of_mix(weights: Weights, ruled: Iterable[str]) -> Iterable[str]:
    """The sources that weights name; those that are `ruled`, if a rule weighs them."""
    return ruled if isinstance(weights, str) else weights


def _check_names(config: Config, names: list[str], url: str) -> None:
    for field, given in _named(config):
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"{field} names the source {name!r}; split {config.split!r} of "
                    f"{url} has {', '.join(map(repr, names))}"
                )


def _named(config: Config) -> Iterator[tuple[str, list[str]]]:
    """The fields that name sources, and these names."""
    parts: list[tuple[str, Config | AmendmentSection]] = [("", config)]
    parts += [(f"amendments.{n}.", each) for n, each in enumerate(config.amendments)]
    for above, part in parts:
        for number, phase in enumerate(part.curriculum or []):
            if not isinstance(phase.mix, str):
                yield f"{above}curriculum.{number}.mix", list(phase.mix)
        if isinstance(part, AmendmentSection) and isinstance(part.mix, dict):
            yield f"{above}mix", list(part.mix)
        yield f"{above}epochs", list(part.epochs)
    yield "generations", list(config.generations)
    if isinstance(config.documents, dict):
        yield "documents", list(config.documents)


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
        split: by default the training split; any other split, or a source of one (`"val/web"`),
            gives every source once, in dataset order, up to `eval_tokens`.
        sharding: a `jax.sharding.Sharding` of (batch, seq), for global `jax.Array`s; or:
        shard: `(i, n)`, for numpy arrays of the i-th of n parts of each batch.
        overrides: fields of the config, nested (`pack={"seq_len": 4096}`) or by dotted names
            (`**{"pack.seq_len": 4096}`).

    Raises:
        ConfigError: a field is unknown, of the wrong type, or names no source of the dataset.

    >>> import tempfile
    >>> from jaxdata.testing import write_dataset
    >>> folder = tempfile.mkdtemp()
    >>> _ = write_dataset(folder, {"train/web": [[1, 2, 3, 0]] * 16})
    >>> loader = load({"dataset": folder, "pack": {"seq_len": 6}, "loader": {"batch_size": 4}})
    >>> len(loader), next(loader)["inputs"].shape
    (2, (4, 6))
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
    dataset.transforms = {
        name: imported(one.transform, f"sources.{name}.transform=")
        for name, one in (config.sources or {}).items()
        if one.transform is not None
    }
    views = _views(config, dataset.splits.get(config.split, []) if _names_views(config) else [])
    return dataset.with_views({f"{config.split}/{name}": view for name, view in views.items()})


def unscored(config: Config, dataset: Dataset) -> str:
    """Why a model is not scored, where that is not asked for; "" where it is scored.

    Raises:
        ConfigError: the config names what to score on, and the dataset lacks it.
    """
    known = [name for name in dataset.splits if name != config.split]
    lacking = [name for name in config.scored.values() if name not in {*known, *dataset.names}]
    if not lacking:
        return ""
    [name, *_], others = lacking, sorted({*known, *dataset.names} if config.eval else known)
    if config.eval or (others and "eval_split" in config.model_fields_set):
        field = "eval" if config.eval else "eval_split"
        named = "names" if config.eval else "is"
        raise ConfigError(
            f"{field} {named} {name!r}; {dataset.url} has {', '.join(map(repr, others))} to score "
            f"on: name one, or null for none{nearest(name, others)}"
        )
    return (
        f"{dataset.url} has no split {name!r}: nothing is scored. Convert some documents with "
        f"--split {name}, or set eval_split to null"
    )


def scored_sets(config: Config, dataset: Dataset) -> dict[str, list[str]]:
    """What is scored of a dataset: the sources, `"<split>/<source>"`, of each set by its name."""
    known = dataset.splits
    sets = {
        name: [of] if of not in known else [f"{of}/{each}" for each in known[of]]
        for name, of in config.scored.items()
    }
    return {name: found for name, found in sets.items() if {*found} <= {*dataset.names}}


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
    from jaxdata.dataset.foreign import is_foreign
    from jaxdata.dataset.opening import JoinedDataset, source_meant

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
    from jaxdata.dataset.foreign import is_foreign
    from jaxdata.dataset.opening import open_dataset

    return open_dataset(path, tokenizer=tokenizer if is_foreign(path) else None, eod_id=eod_id)


def loader_arguments(config: Config, split: str | None = None) -> dict[str, Any]:
    """The arguments of a split's loader, without `sharding` and `shard`."""
    given, training = config.loader, split in (None, config.split)
    return {
        "batch_size": given.batch_size if training else given.first_batch_size,
        "num_workers": given.num_workers if training else 0,
        "prefetch": given.prefetch,
        "drop_remainder": given.drop_remainder and training,
        "skip_rows": [(a, b) for a, b in given.skip_rows] if training else (),
        "layout": given.layout,
        "extras": given.extras,
        "balance": given.balance if training else None,
        "microbatches": given.microbatches if training else 1,
        "context_parallel": given.context_parallel,
        "objective": _objective(config),
        "reiterable": given.reiterable,
    }


def _objective(config: Config) -> Any:
    """The objective of a run, with the ids of the data's tokenizer for texts."""
    given = config.loader.objective
    if given is None or not given.tokens_of:
        return given
    return given.with_ids(lambda text: open_data(config).tokenizer.token_id(text))


def build_rows(config: Config, split: str | None = None, *, shuffle: bool = True) -> Any:
    """The rows of a split, a `grain.MapDataset`: the training mixture, or evaluation rows.

    Without `shuffle` the training split gives every source once, whole, in dataset order.
    """
    from jaxdata.rows.map_datasets import evaluation_rows

    dataset = open_data(config)
    training = split in (None, config.split)
    if training and shuffle:
        return curriculum_rows(dataset, config)
    pack = config.pack.model_dump(exclude={"chunk_bytes", "block_bytes", "lanes", "reshuffle"})
    most = None if training else config.eval_tokens
    return evaluation_rows(dataset, split or config.split, eval_tokens=most, **pack)
