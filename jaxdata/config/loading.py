"""From a config to its mixture, with its curriculum and amendments, and to a loader of batches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdata.base.errors import ConfigError, InputError, nearest
from jaxdata.base.source_text import function_named
from jaxdata.config.config_fields import AmendmentSection, Config, PhaseSection, use_storage
from jaxdata.config.config_reader import load_config
from jaxdata.dataset.foreign import is_foreign
from jaxdata.dataset.opening import Dataset, JoinedDataset, open_dataset, source_meant, source_names
from jaxdata.feed.loader import Loader
from jaxdata.rows.map_datasets import MixedDataset, evaluation_rows, mix, pack
from jaxdata.rows.mixing.phases import Phase, Weights
from jaxdata.rows.packing.dealing import resolved
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.settings import PackSettings

Phases = Sequence[PhaseSection] | None
_OF_TRAINING = {"chunk_bytes", "block_bytes", "lanes", "reshuffle"}
"""fields of `pack` that say in which order rows are trained"""
_AMENDED = ("curriculum", "mix", "on_exhaustion")


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
    settings = load_config(config, overrides)
    rows, arguments = build_rows(settings, split), loader_arguments(settings, split)
    return Loader(rows, sharding=sharding, shard=shard, **arguments)


def loader_arguments(config: Config, split: str | None = None) -> dict[str, Any]:
    """The arguments of a split's loader, without `sharding` and `shard`."""
    given, training = config.loader, split in (None, config.split)
    arguments = {name: getattr(given, name) for name in type(given).model_fields}
    if given.objective is not None and given.objective.tokens_of:
        token_id = open_data(config).tokenizer.token_id
        arguments["objective"] = given.objective.with_ids(token_id)
    if not training:
        arguments |= {"batch_size": given.first_batch_size, "num_workers": 0, "skip_rows": ()}
        arguments |= {"drop_remainder": False, "balance": None, "microbatches": 1}
    return arguments


def build_rows(config: Config, split: str | None = None, *, shuffle: bool = True) -> Any:
    """The rows of a split, a `grain.MapDataset`: the training mixture, or evaluation rows.

    Without `shuffle` the training split gives every source once, whole, in dataset order.
    """
    dataset, training = open_data(config), split in (None, config.split)
    if training and shuffle:
        return _curriculum(dataset, config)
    most = None if training else config.eval_tokens
    packing = config.pack.model_dump(exclude=_OF_TRAINING)
    return evaluation_rows(dataset, split or config.split, eval_tokens=most, **packing)


def _curriculum(dataset: Dataset, config: Config) -> MixedDataset:
    """The rows of the training split, with all amendments."""
    names = source_names(dataset, config.split)
    for field, given in _named(config):
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"{field} names the source {name!r}; split {config.split!r} of {dataset.url} "
                    f"has {', '.join(map(repr, names))}"
                )
    settings, pending = config.pack.model_dump(), dict(enumerate(config.amendments))
    mixed = mix(
        _packed(dataset, config, settings, _weighed(config.curriculum, names)),
        phases=_phases(config.curriculum),
        epochs=config.epochs,
        on_exhaustion=config.on_exhaustion,
    )
    while pending:
        row, numbers = _next(mixed, pending, config)
        sections = [pending.pop(number) for number in numbers]
        try:
            mixed = _amended(mixed, row, sections, dataset, config, settings)
        except InputError as error:
            where = ", ".join(f"amendments.{number}" for number in numbers)
            raise ConfigError(f"{where}: {error}") from None
    return mixed


def _named(config: Config) -> Iterator[tuple[str, Iterable[str]]]:
    """The fields that name sources, and these names."""
    parts: list[tuple[str, Any]] = [("", config)]
    parts += [(f"amendments.{n}.", each) for n, each in enumerate(config.amendments)]
    for above, part in parts:
        for number, phase in enumerate(part.curriculum or []):
            yield f"{above}curriculum.{number}.mix", _of_mix(phase.mix)
        yield f"{above}mix", _of_mix(getattr(part, "mix", None))
        yield f"{above}epochs", part.epochs
    yield "generations", config.generations
    yield "documents", config.documents if isinstance(config.documents, dict) else ()


def _next(
    mixed: MixedDataset, pending: Mapping[int, AmendmentSection], config: Config
) -> tuple[int, list[int]]:
    """The row of the next amendments, and their numbers: several at one row count as one.

    No amendment from that row on can move it, as batches before it stay as they are.
    """
    skips = [(a, min(b, len(mixed))) for a, b in config.loader.skip_rows if a < len(mixed)]
    loader = Loader(mixed, batch_size=config.loader.batch_size, skip_rows=skips)
    rows: dict[int, int] = {}
    for number, section in pending.items():
        if section.at_row is not None:
            rows[number] = section.at_row
        elif section.at_step is not None and section.at_step <= len(loader):
            loader.seek(step=section.at_step)
            rows[number] = loader.next_row
    if not rows:  # steps that no row of the run has, nor will have
        number, section = next(iter(pending.items()))
        raise ConfigError(
            f"amendments.{number}: cannot seek to step {section.at_step}: the steps are 0 to "
            f"{len(loader)}"
        )
    row = min(rows.values())
    return row, [number for number, at in rows.items() if at == row]


def _amended(
    mixed: MixedDataset,
    row: int,
    sections: Sequence[AmendmentSection],
    dataset: Dataset,
    config: Config,
    settings: dict[str, Any],
) -> MixedDataset:
    """The mixture with the amendments at a row; the last wins where several set the same.

    `settings`, of packing from there on, are changed.
    """
    last: dict[str, Any] = {}
    for section in sections:
        last |= {name: value for name in _AMENDED if (value := getattr(section, name))}
    epochs = {name: times for each in sections for name, times in each.epochs.items()}
    packs = [each.pack.model_dump(exclude_unset=True) for each in sections if each.pack is not None]
    for packed in packs:
        settings |= packed
    curriculum, known = last.get("curriculum"), mixed.sources
    wanted = _weighed(curriculum, source_names(dataset, config.split)) if curriculum else [*known]
    wanted += [name for name in _of_mix(last.get("mix")) if name not in wanted]
    packing = PackSettings.checked(seed=config.seed, **settings)

    def differs(rows: PackedRows) -> bool:
        return rows.settings != resolved(rows.documents[0], packing)

    given = [n for n in wanted if any(packs) or n not in known or differs(known[n].table)]
    return mixed.amend(
        row,
        rows=_packed(dataset, config, settings, given),
        phases=_phases(curriculum),
        weights=last.get("mix"),
        epochs=epochs or None,
        on_exhaustion=last.get("on_exhaustion"),
    )


def _packed(
    dataset: Dataset, config: Config, settings: dict[str, Any], names: Iterable[str]
) -> dict[str, Any]:
    opened = {
        name: dataset.source(config.split, name, generation=config.generations.get(name))
        for name in names
    }
    return {name: pack(each, seed=config.seed, **settings) for name, each in opened.items()}


def _phases(curriculum: Phases) -> list[Phase] | None:
    return None if curriculum is None else [phase.phase() for phase in curriculum]


def _weighed(curriculum: Phases, names: list[str]) -> list[str]:
    """The sources that the phases weigh; all of them if a rule does."""
    if curriculum is None or any(isinstance(phase.mix, str) for phase in curriculum):
        return names
    wanted = {name for phase in curriculum for name in phase.mix}
    return [name for name in names if name in wanted]


def _of_mix(weights: Weights | None) -> Iterable[str]:
    """The sources that weights name; a rule names none."""
    return () if weights is None or isinstance(weights, str) else weights


def open_data(config: Config) -> Dataset:
    """The dataset of a config; several are joined into one, training reads the views it names."""
    use_storage(config.storage)
    sections = config.sources or {}
    paths = [one.dataset for one in sections.values()] or [str(config.dataset)]
    if config.tokenizer is not None and not any(map(is_foreign, paths)):
        raise ConfigError(
            f"tokenizer={config.tokenizer!r} is for other tools' data; {', '.join(paths)} has its "
            "own tokenizer: remove `tokenizer`"
        )

    def opened(path: str, eod_id: int | None = None) -> Dataset:
        tokenizer = config.tokenizer if is_foreign(path) else None
        return open_dataset(path, tokenizer=tokenizer, eod_id=eod_id)

    if not sections:
        dataset = opened(paths[0])
    else:
        meant: dict[str, tuple[Dataset, str]] = {}
        for name, one in sections.items():
            each = opened(one.dataset, one.eod_id)
            meant[name] = each, source_meant(each, name, one.source)
        dataset = JoinedDataset(meant, config.tokenizer)
    dataset.transforms = {
        name: function_named(one.transform, f"sources.{name}.transform=")
        for name, one in sections.items()
        if one.transform is not None
    }
    given = config.documents or {}
    views = {name: one.documents for name, one in sections.items() if one.documents is not None}
    names = dataset.splits.get(config.split, []) if views or given else []
    of_all = dict.fromkeys(names, given) if isinstance(given, str) else given
    views = of_all | {name: view for name, view in views.items() if name in names}
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
        field = "eval names" if config.eval else "eval_split is"
        raise ConfigError(
            f"{field} {name!r}; {dataset.url} has {', '.join(map(repr, others))} to score on: name "
            f"one, or null for none{nearest(name, others)}"
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


def sources_of(dataset: Dataset, config: Config) -> list[str]:
    """The sources, `"<split>/<source>"`, that training or evaluation reads, sometime."""
    names = dataset.splits.get(config.split, [])
    read = {*_weighed(config.curriculum, names)}
    for amendment in config.amendments:
        read |= {*_of_mix(amendment.mix)}
        read |= {*_weighed(amendment.curriculum, names)} if amendment.curriculum else set()
    trained = [f"{config.split}/{name}" for name in names if name in read]
    scored = [name for found in scored_sets(config, dataset).values() for name in found]
    return list(dict.fromkeys([*trained, *scored]))
