"""From a YAML file, a shipped config or a mapping to a validated `Config`.

Overrides come last; errors name the line and the remedy.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from jaxdata.base.errors import ConfigError, DatasetError, nearest
from jaxdata.base.numbers import explained
from jaxdata.base.settings import read_yaml
from jaxdata.config.config_fields import TAGS, Config
from jaxdata.storage.contract import is_url, plain_path
from jaxdata.storage.small_files import read_small

Location = tuple[str | int, ...]
_WHOLE = ("mix", "epochs", "sources", "generations", "documents")
"""mappings whose keys are the user's own: an override replaces the whole mapping"""


class _Loader(yaml.SafeLoader):
    """YAML that reads `5e9` and `3e-4` as floats."""


_Loader.yaml_implicit_resolvers = deepcopy(yaml.SafeLoader.yaml_implicit_resolvers)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


@dataclass
class ConfigValues:
    """The plain values of a config, its name, and the line of each field."""

    values: dict[str, Any]
    name: str
    lines: dict[Location, int] = field(default_factory=dict)
    overridden: list[Location] = field(default_factory=list)

    def place(self, location: Location) -> str:
        """Where the field at `location` was set, such as `configs/demo.yaml, line 7`."""
        if any(location[: len(given)] == given for given in self.overridden):
            return "set by an override"
        above = (self.lines.get(location[:size]) for size in range(len(location), 0, -1))
        line = next(filter(None, above), None)
        return f"{self.name}, line {line}" if line else self.name

    def override(self, name: str, value: Any) -> None:
        """Set a field by its dotted name; a mapping keeps the other fields of its section."""
        self._set(self.values, name.split("."), value, ())

    def _set(self, values: Any, names: Sequence[str], value: Any, above: Location) -> None:
        key: str | int = names[0]
        if isinstance(values, list):
            if not names[0].isdigit() or int(names[0]) >= len(values):
                raise ConfigError(
                    f"{'.'.join(map(str, above))} is a list of {len(values)}: expected the number "
                    f"of an item, 0 to {len(values) - 1}, got {key!r}"
                )
            key = int(names[0])
        here, known = (*above, key), dict(enumerate(values)) if isinstance(values, list) else values
        if len(names) > 1:
            if not isinstance(known.get(key), dict | list):
                values[key] = {}
            self._set(values[key], names[1:], value, here)
        elif isinstance(value, Mapping) and isinstance(known.get(key), dict) and key not in _WHOLE:
            for name, inner in value.items():
                self._set(values[key], (name,), inner, here)
        else:
            values[key] = value
            self.overridden.append(here)


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Turn `["--pack.seq_len", "4096", "--seed=1"]` into `{"pack.seq_len": 4096, "seed": 1}`.

    Values are YAML: `null`, `true`, `5e9`, `{web: 0.6, code: 0.4}`.
    """
    overrides: dict[str, Any] = {}
    remaining = iter(arguments)
    for flag in remaining:
        name, equals, text = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or not name:
            raise ConfigError(f"expected an override like --pack.seq_len 4096, got {flag!r}")
        value = text if equals else next(remaining, None)
        if value is None:
            raise ConfigError(f"{flag} needs a value, like {flag} 4096")
        overrides[name], _ = read_yaml(value, flag, _Loader)
    return overrides


def read_values(config: str | Path | Mapping[str, Any]) -> ConfigValues:
    """Read a config: a mapping, a path, or the name of a config shipped with jaxdata."""
    if isinstance(config, Mapping):
        return ConfigValues(deepcopy(dict(config)), "the given config")
    path = plain_path(config) if is_url(config) else str(_find(Path(plain_path(config))))
    try:
        text = read_small(path).decode()
    except (OSError, UnicodeDecodeError, DatasetError) as error:
        raise ConfigError(f"cannot read the config {path}: {error}") from None
    values, node = read_yaml(text, path, _Loader)
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: expected fields like `dataset: data/demo`, got {type(values).__name__}"
        )
    return ConfigValues(values, path, _lines(node, ()))


def packaged_configs() -> dict[str, Path]:
    """The configs shipped with jaxdata, by name: in the wheel, or in the checkout."""
    package = Path(__file__).parents[1]
    folders = [package / "configs", package.parent / "configs"]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    packaged = packaged_configs()
    if str(path.parent) in (".", "configs") and path.stem in packaged:
        return packaged[path.stem]
    if (path / "dataset.json").is_file():
        raise ConfigError(
            f"{path} is a dataset, not a config: give a config, and --dataset {path}, "
            f"as in: pretrain --dataset {path}"
        )
    raise ConfigError(
        f"no config at {path} (from {Path.cwd()}): expected a YAML file, or the name of a config "
        f"shipped with jaxdata: {', '.join(sorted(packaged))}"
    )


def _lines(node: yaml.Node | None, above: Location) -> dict[Location, int]:
    """The line of every field and list item, from 1; rejects a field that is set twice."""
    items: list[tuple[str | int, int, yaml.Node]] = []
    if isinstance(node, yaml.SequenceNode):
        items = [(k, item.start_mark.line + 1, item) for k, item in enumerate(node.value)]
    elif isinstance(node, yaml.MappingNode):
        items = [(key.value, key.start_mark.line + 1, item) for key, item in node.value]
    found: dict[Location, int] = {}
    for key, line, item in items:
        location = (*above, key)
        if location in found:
            raise ConfigError(
                f"{'.'.join(map(str, location))} is given twice, in lines {found[location]} and "
                f"{line}: keep one"
            )
        found |= {location: line, **_lines(item, location)}
    return found


def load_config(
    config: str | Path | Mapping[str, Any] | Config, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Read and validate a config.

    Args:
        config: a YAML file, the name of a config shipped with jaxdata (`"demo"`), a mapping of
            the same form, or a `Config`.
        overrides: fields to set, by dotted names (`{"pack.seq_len": 4096}`) or nested
            (`{"pack": {"seq_len": 4096}}`); a number selects an item of a list
            (`{"curriculum.0.tokens": 5e9}`).

    Raises:
        ConfigError: the file is missing or not YAML, or fields are unknown or of the wrong type;
            the message lists all of them, with their lines.

    >>> load_config({"dataset": "data/demo"}, {"pack.seq_len": 4096}).pack.seq_len
    4096
    """
    return read_config_values(config, overrides)[0]


def read_config_values(
    config: str | Path | Mapping[str, Any] | Config, overrides: Mapping[str, Any] | None = None
) -> tuple[Config, ConfigValues]:
    """The same, and the values it was made of, which know where each field was set."""
    if isinstance(config, Config):
        config = config.model_dump(exclude_unset=True)
    values = read_values(config)
    for name, value in (overrides or {}).items():
        values.override(name, value)
    try:
        return Config.model_validate(values.values), values
    except ValidationError as error:
        found = [_explain(problem, values) for problem in error.errors(include_url=False)]
        raise ConfigError("\n".join(found)) from None


def _explain(problem: Mapping[str, Any], values: ConfigValues) -> str:
    location: Location = tuple(part for part in problem["loc"] if part not in TAGS)
    name = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        known, dotted = [*_fields(Config)], ".".join(each for each in location if type(each) is str)
        above = dotted.rpartition(".")[0]
        beside = ", ".join(each for each in known if each.rpartition(".")[0] == above)
        says = f"unknown field {name!r}{nearest(dotted, known) or f'; known fields: {beside}'}"
    else:
        says = explained(problem, name)
    return f"{says} ({values.place(location)})"


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section within an annotation: Phase in `list[Phase] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)


def _fields(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """The dotted names of all fields, without the numbers of items of lists."""
    for name, info in model.model_fields.items():
        yield above + name
        if section := section_in(info.annotation):
            yield from _fields(section, f"{above}{name}.")
