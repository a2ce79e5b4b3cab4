"""The mixture that a config describes: its curriculum, amended as it says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jaxdata
from jaxdata.config.curriculum import PhaseSettings
from jaxdata.config.models import AmendmentSettings, Config
from jaxdata.errors import ConfigError, InputError
from jaxdata.rows.sources import Sources, source_names

__all__ = ["curriculum_rows", "sources_read"]

Phases = Sequence[PhaseSettings] | None


def curriculum_rows(dataset: Sources, config: Config) -> Any:
    """The rows of a config's training split, a `jaxdata.mix`."""
    names = source_names(dataset, config.split)
    _check_names(config, names, dataset.url)
    pack = config.pack.model_dump()
    mixed = jaxdata.mix(
        _packed(dataset, config, pack, _weighed(config.curriculum, names)),
        phases=_phases(config.curriculum),
        epochs=config.epochs,
        on_exhaustion=config.on_exhaustion,
    )
    for number, amendment in enumerate(config.amendments):
        changed = amendment.pack.model_dump(exclude_unset=True) if amendment.pack else {}
        pack = {**pack, **changed}
        known = mixed.sources
        wanted = _weighed(amendment.curriculum, names) if amendment.curriculum else list(known)
        given = [name for name in wanted if changed or name not in known]
        try:
            mixed = mixed.amend(
                _row(mixed, amendment, config),
                rows=_packed(dataset, config, pack, given),
                phases=_phases(amendment.curriculum),
                epochs=amendment.epochs or None,
                on_exhaustion=amendment.on_exhaustion,
            )
        except InputError as error:
            raise ConfigError(f"amendments.{number}: {error}") from None
    return mixed


def sources_read(names: list[str], config: Config) -> list[str]:
    """Those of a split's sources that a config trains on, before its amendments or after."""
    read = set(_weighed(config.curriculum, names))
    for amendment in config.amendments:
        read |= set(_weighed(amendment.curriculum, names) if amendment.curriculum else [])
    return [name for name in names if name in read]


def _packed(dataset: Sources, config: Config, pack: dict[str, Any], names: list[str]) -> Any:
    return {
        name: jaxdata.pack(
            dataset.source(config.split, name, generation=config.generations.get(name)),
            seed=config.seed,
            **pack,
        )
        for name in names
    }


def _phases(curriculum: Phases) -> list[jaxdata.Phase] | None:
    return None if curriculum is None else [phase.phase() for phase in curriculum]


def _weighed(curriculum: Phases, names: list[str]) -> list[str]:
    """The sources that some phases weigh, all of them where a rule says how."""
    if curriculum is None or any(isinstance(phase.mix, str) for phase in curriculum):
        return names
    wanted = {name for phase in curriculum for name in phase.mix}
    return [name for name in names if name in wanted]


def _row(mixed: Any, amendment: AmendmentSettings, config: Config) -> int:
    """The row at which an amendment begins."""
    if amendment.at_row is not None:
        return amendment.at_row
    skips = [(a, min(b, len(mixed))) for a, b in config.loader.skip_rows if a < len(mixed)]
    loader = jaxdata.Loader(mixed, batch_size=config.loader.batch_size, skip_rows=skips)
    loader.seek(step=amendment.at_step)
    return int(loader.next_row)


def _check_names(config: Config, names: list[str], url: str) -> None:
    for field, given in _named(config):
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"{field} names the source {name!r}; split {config.split!r} of "
                    f"{url} has {', '.join(map(repr, names))}"
                )


def _named(config: Config) -> Iterator[tuple[str, list[str]]]:
    """Where a config names sources, and which."""
    parts: list[tuple[str, Config | AmendmentSettings]] = [("", config)]
    parts += [(f"amendments.{n}.", each) for n, each in enumerate(config.amendments)]
    for above, part in parts:
        for number, phase in enumerate(part.curriculum or []):
            if not isinstance(phase.mix, str):
                yield f"{above}curriculum.{number}.mix", list(phase.mix)
        yield f"{above}epochs", list(part.epochs)
    yield "generations", list(config.generations)
