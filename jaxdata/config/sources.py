"""Where a config comes from: a YAML file, one that ships with jaxdata, or a mapping; and overrides.

Keeps the line of every field, so that errors can name it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import jaxdata
from jaxdata.errors import ConfigError

__all__ = ["Location", "Source", "packaged_configs", "parse_overrides", "read_source"]

Location = tuple[str | int, ...]

_WHOLE = (
    "mix",
    "epochs",
    "sources",
    "generations",
)  # mappings whose keys are the user's: an override replaces all of them


class _Loader(yaml.SafeLoader):
    """YAML whose floats may be written `5e9` and `3e-4`, as everyone does."""


_Loader.yaml_implicit_resolvers = deepcopy(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


@dataclass
class Source:
    """The plain values of a config, what to call it, and where its fields stand."""

    values: dict[str, Any]
    name: str
    lines: dict[Location, int] = field(default_factory=dict)
    overridden: list[Location] = field(default_factory=list)

    def place(self, location: Location) -> str:
        """`configs/demo.yaml, line 7`, or who else gave the field at `location`."""
        if any(location[: len(given)] == given for given in self.overridden):
            return "given as an override"
        above = (self.lines.get(location[:size]) for size in range(len(location), 0, -1))
        line = next(filter(None, above), None)
        return f"{self.name}, line {line}" if line else self.name

    def override(self, overrides: Mapping[str, Any]) -> None:
        """Set fields by dotted names; a section given as a mapping keeps its other fields."""
        for name, value in overrides.items():
            self._set(self.values, tuple(name.split(".")), value, ())

    def _set(self, values: Any, names: Sequence[str], value: Any, above: Location) -> None:
        key = _key(values, names[0], above)
        here = (*above, key)
        if len(names) > 1:
            inner = values[key] if isinstance(key, int) else values.get(key)
            if not isinstance(inner, dict | list):
                inner = values[key] = {}
            self._set(inner, names[1:], value, here)
        elif isinstance(value, Mapping) and isinstance(values.get(key), dict) and key not in _WHOLE:
            for name, inner in value.items():
                self._set(values[key], (name,), inner, here)
        else:
            values[key] = value
            self.overridden.append(here)


def _key(values: Any, name: str, above: Location) -> str | int:
    """A list takes the number of one of its items, anything else a name."""
    if not isinstance(values, list):
        return name
    if not name.isdigit() or int(name) >= len(values):
        raise ConfigError(
            f"{'.'.join(map(str, above))} is a list of {len(values)}: expected the number of an "
            f"item, 0 to {len(values) - 1}, after it, got {name!r}"
        )
    return int(name)


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """`["--pack.seq_len", "4096", "--seed=1"]` as `{"pack.seq_len": 4096, "seed": 1}`.

    Values are YAML: `null`, `true`, `5e9`, `{web: 0.6, code: 0.4}`.
    """
    overrides: dict[str, Any] = {}
    remaining = list(arguments)
    while remaining:
        flag = remaining.pop(0)
        name, equals, text = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or not name:
            raise ConfigError(f"expected an override like --pack.seq_len 4096, got {flag!r}")
        if not equals:
            if not remaining:
                raise ConfigError(f"{flag} needs a value after it, like {flag} 4096")
            text = remaining.pop(0)
        overrides[name] = _parse_yaml(text, flag)
    return overrides


def read_source(config: str | Path | Mapping[str, Any]) -> Source:
    """Read a config that is a mapping, a path, or the name of one that ships with jaxdata."""
    if isinstance(config, Mapping):
        return Source(deepcopy(dict(config)), "the config given")
    path = _find(Path(config))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the config {path}: {error}") from None
    values = _parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: expected fields like `dataset: data/demo`, got {type(values).__name__}"
        )
    return Source(values, str(path), dict(_lines(yaml.compose(text, _Loader), ())))


def packaged_configs() -> dict[str, Path]:
    """The configs that ship with jaxdata, by name: in a wheel, or in the checkout beside it."""
    package = Path(jaxdata.__file__).parent
    folders = [package / "configs", package.parent / "configs"]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def _find(path: Path) -> Path:
    if path.exists():
        return path
    packaged = packaged_configs()
    if str(path.parent) in (".", "configs") and path.stem in packaged:
        return packaged[path.stem]
    raise ConfigError(
        f"no config at {path} (from {Path.cwd()}): expected a YAML file, or one of those that "
        f"come with jaxdata: {', '.join(sorted(packaged))}"
    )


def _parse_yaml(text: str, name: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {error}") from None


def _lines(node: yaml.Node | None, above: Location) -> list[tuple[Location, int]]:
    """The line of every field and list item, counted from 1; a field given twice is refused."""
    if isinstance(node, yaml.SequenceNode):
        items: list[tuple[str | int, int, yaml.Node]] = [
            (index, item.start_mark.line + 1, item) for index, item in enumerate(node.value)
        ]
    elif isinstance(node, yaml.MappingNode):
        items = [(key.value, key.start_mark.line + 1, item) for key, item in node.value]
    else:
        return []
    found: dict[Location, int] = {}
    for key, line, item in items:
        location = (*above, key)
        if location in found:
            raise ConfigError(
                f"{'.'.join(map(str, location))} is given twice, in lines {found[location]} and "
                f"{line}: keep one"
            )
        found[location] = line
        found.update(_lines(item, location))
    return list(found.items())
