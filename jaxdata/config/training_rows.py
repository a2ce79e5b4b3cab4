"""The mixture that a config describes: its curriculum and amendments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxdata.config.amendment_order import next_amendments, packing_of
from jaxdata.config.config_fields import AmendmentSection, Config
from jaxdata.config.curriculum import PhaseSection
from jaxdata.documents.dataset import Dataset, source_names
from jaxdata.errors import ConfigError, InputError
from jaxdata.map_datasets import MixedDataset, mix, pack
from jaxdata.mixing.phases import Phase
from jaxdata.packing.document_order import resolved
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.packing.settings import PackSettings

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
    on_exhaustion = [each.on_exhaustion for each in sections if each.on_exhaustion]
    names, known = source_names(dataset, config.split), mixed.sources
    wanted = _weighed(curriculum, names) if curriculum else list(known)
    packing, repacks = PackSettings(seed=config.seed, **settings), bool(packing_of(sections))
    given = [
        name
        for name in wanted
        if repacks or name not in known or _differs(known[name].table, packing)
    ]
    return mixed.amend(
        row,
        rows=_packed(dataset, config, settings, given),
        phases=_phases(curriculum),
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
    if curriculum is None or any(isinstance(phase.mix, str) for phase in curriculum):
        return names
    wanted = {name for phase in curriculum for name in phase.mix}
    return [name for name in names if name in wanted]


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
        yield f"{above}epochs", list(part.epochs)
    yield "generations", list(config.generations)
    if isinstance(config.documents, dict):
        yield "documents", list(config.documents)
