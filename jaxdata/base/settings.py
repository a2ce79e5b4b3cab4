"""The base of every section of a config: strict models, counts in scientific notation, and YAML."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from jaxdata.base.errors import ConfigError
from jaxdata.base.numbers import check_width
from jaxdata.base.wording import shortened

_MOST_WHOLE = 2**62
_LARGEST_YAML = 2**20
_MOST_VALUES = 100_000
_DEEPEST = 50


class Settings(BaseModel):
    """A frozen section of a config; rejects unknown fields and silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def whole(value: object) -> object:
    """Read `5e9`, a float in YAML and a string in some shells, as the count 5,000,000,000."""
    if isinstance(value, str):
        try:
            value = float(value.replace("_", ""))
        except ValueError:
            return value
    fits = isinstance(value, float) and value.is_integer() and abs(value) < _MOST_WHOLE
    return int(value) if fits else value  # type: ignore[call-overload]


Count = Annotated[int, Field(ge=1, le=_MOST_WHOLE), BeforeValidator(whole)]
Natural = Annotated[int, Field(ge=0, le=_MOST_WHOLE)]


@dataclass(frozen=True)
class OneOf:
    """Accept a name of a registry only; the registry is looked up when a value is checked.

    >>> from pydantic import TypeAdapter
    >>> TypeAdapter(Annotated[str, OneOf({"pad": 1, "crop": 2})]).validate_python("crop")
    'crop'
    """

    names: Collection[str]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema) | {"enum": sorted(self.names)}

    def _check(self, value: str) -> str:
        return known(value, self.names)


def known(value: str, names: Collection[str]) -> str:
    """A value that is one of some names."""
    if value not in names:
        *others, last = map(repr, sorted(names))
        raise ValueError(f"should be {', '.join(others)} or {last}, got {value!r}")
    return value


def read_yaml(
    text: str, name: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader
) -> tuple[Any, yaml.Node | None]:
    """The values of a YAML text, and the node that knows their lines.

    Raises:
        ConfigError: it is not YAML, or larger than any config: in bytes, in values after aliases
            are followed, in depth, or in the digits of a number.
    """
    if len(text) > _LARGEST_YAML:
        raise ConfigError(f"{name}: {len(text):,} characters; expected at most {_LARGEST_YAML:,}")
    try:
        reader = loader(text)
        node = reader.get_single_node()
        if node is None:
            return None, None
        _check_nodes(node, name, reader)
        return reader.construct_document(node), node
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: {_TOO_DEEP}") from None
    except ConfigError:
        raise
    except ValueError as error:  # a date that is none
        raise ConfigError(f"{name}: {error}") from None


_TOO_DEEP = f"lists or mappings in each other deeper than {_DEEPEST}, or an alias within itself"


def _check_nodes(root: yaml.Node, name: str, reader: yaml.SafeLoader) -> None:
    """Refuse what grows without limit once aliases are followed, and numbers that do not fit."""
    known: dict[int, tuple[int, int]] = {}

    def measure(node: yaml.Node, depth: int) -> tuple[int, int]:
        """The values in a node, and its depth."""
        if node.tag == "tag:yaml.org,2002:int":
            _check_whole(node, name, reader)
        if id(node) not in known:
            inner = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = [part for each in inner for part in (each if type(each) is tuple else [each])]
            below = [measure(part, depth + 1) for part in parts] if depth <= _DEEPEST else [(0, 0)]
            known[id(node)] = (
                1 + sum(size for size, _ in below),
                1 + max((height for _, height in below), default=0),
            )
        if depth + known[id(node)][1] > _DEEPEST + 1:
            raise ConfigError(f"{name}, line {node.start_mark.line + 1}: {_TOO_DEEP}")
        return known[id(node)]

    if measure(root, 1)[0] > _MOST_VALUES:
        raise ConfigError(
            f"{name}: more than {_MOST_VALUES:,} values, each alias counted as what it stands for"
        )


def _check_whole(node: yaml.Node, name: str, reader: yaml.SafeLoader) -> None:
    try:
        check_width(reader.construct_object(node))
    except ValueError:  # InputError, or Python's own for thousands of digits
        raise ConfigError(
            f"{name}, line {node.start_mark.line + 1}: expected a whole number of at most 64 bits, "
            f"got {shortened(node.value, 40)}"
        ) from None
