"""The base of every declaration of settings, counts in scientific notation, and YAML."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic.functional_validators import BeforeValidator, PlainValidator, field_validator
from pydantic_core import PydanticCustomError

from jaxdata.base.errors import ConfigError, InputError, either, nearest
from jaxdata.base.numbers import explained, in_words, plain

_MOST_WHOLE = 2**62
_LARGEST_YAML = 2**20
_MOST_VALUES = 100_000
_DEEPEST = 50


class Settings(BaseModel):
    """One declaration of what can be set: a section of a config, the arguments of a function.

    Frozen; rejects unknown fields and silent conversions, and takes numbers of numpy as Python's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return plain(value)

    @classmethod
    def checked(cls, **given: Any) -> Self:
        """The settings that a function was given.

        Raises:
            InputError: a value is wrong; the message says what is expected.
        """
        try:
            return cls(**given)
        except ValidationError as error:
            raise InputError(refusal(cls, error)) from None

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> Self:
        """The same of those arguments of a function that are fields; `given` is its `locals()`."""
        return cls.checked(**{name: given[name] for name in cls.model_fields if name in given})


def setting(default: Any, description: str, **more: Any) -> Any:
    r"""Declare a field that a command has as an option, made by `jaxdata.cli.options`.

    Args:
        default: its value where nobody sets it.
        description: what it does, in a sentence that is understood alone: the help of the option.
        **more: for the option, `metavar`, what `--help` calls the value; `shown`, what it gives as
            the default, where the value does not say it; `heading`, where `--help-all` lists the
            option; `escapes`, to take \n and \t as typed for a new line and a tab; `flag`, what is
            typed, where that is not its name; `type`, what click makes of it, where its annotation
            does not say that. For configs, `advanced`: shown only where all are asked for. Others
            are constraints of :func:`pydantic.Field`.
    """
    extra = {name: more.pop(name) for name in _OF_OPTIONS if name in more}
    given = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return Field(description=description, json_schema_extra=extra, **given, **more)


_OF_OPTIONS = ("metavar", "shown", "heading", "escapes", "flag", "type", "advanced")


def told(field: FieldInfo, name: str) -> Any:
    """What :func:`setting` was told of a field that pydantic does not know."""
    extra = field.json_schema_extra
    return extra.get(name) if isinstance(extra, dict) else None


def refusal(model: type[BaseModel], error: ValidationError) -> str:
    """The first error of a model's fields, as a function says it of its arguments."""
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name!r}{nearest(name, model.model_fields)}"
    field = model.model_fields.get(str((first["loc"] or ("",))[0]))
    words = in_words(field.annotation) if field else None
    # not the one of several types that is meant
    return explained(first, str(first["loc"][0]) if words else name, words)


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


def registered(names: Collection[str], known: Any) -> PlainValidator:
    """Accept a name of a registry only, of which `known`, a `Literal`, may have but some.

    The registry is looked up when a value is checked.

    >>> from pydantic import TypeAdapter
    >>> TypeAdapter(Annotated[str, registered({"pad": 1, "crop": 2}, str)]).validate_python("crop")
    'crop'
    """

    def checked(value: object) -> object:
        if not isinstance(value, str) or value not in names:
            context = {"expected": either(sorted(names))}
            raise PydanticCustomError("literal_error", "Input should be {expected}", context)
        return value

    return PlainValidator(checked, json_schema_input_type=known)


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
        _check_nodes(node, name)
        return reader.construct_document(node), node
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: {_TOO_DEEP}") from None
    except ConfigError:
        raise
    except ValueError as error:  # a date that is none, or thousands of digits
        raise ConfigError(f"{name}: {error}") from None


_TOO_DEEP = f"lists or mappings in each other deeper than {_DEEPEST}, or an alias within itself"


def _check_nodes(root: yaml.Node, name: str) -> None:
    """Refuse what grows without limit once aliases are followed."""
    seen, left = 0, [(root, 1)]
    while left:
        node, depth = left.pop()
        seen += 1
        if depth > _DEEPEST:
            raise ConfigError(f"{name}, line {node.start_mark.line + 1}: {_TOO_DEEP}")
        if seen > _MOST_VALUES:
            raise ConfigError(
                f"{name}: more than {_MOST_VALUES:,} values, each alias counted as what it stands "
                "for"
            )
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        for each in inner:
            left += [(part, depth + 1) for part in (each if type(each) is tuple else [each])]
