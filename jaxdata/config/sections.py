"""Sections of a config made from the fields of a room's own settings, named only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_origin, get_type_hints

from pydantic import Field, create_model

from jaxdata.settings import Count, Natural, OneOf, Settings


def section_of(settings: type, *, without: Sequence[str] = (), **defaults: Any) -> Any:
    """A model with the fields of a dataclass; `defaults` are those that differ in a config.

    Each field has `metadata` of `description`, `least` and `most` (of whole numbers; others have no
    `least`) and `choices` (the values it may have, or None).
    """
    hints = get_type_hints(settings)
    chosen: dict[str, Any] = {}
    for each in fields(settings):
        if each.name not in without:
            default = defaults.get(each.name, each.default)
            default = ... if default is MISSING else default
            field = Field(default=default, description=each.metadata["description"])
            chosen[each.name] = _checked(hints[each.name], each.metadata), field
    return create_model(settings.__name__, __base__=Settings, **chosen)


def _checked(hint: Any, metadata: Any) -> Any:
    """The type of a field, with the checks of its metadata."""
    if metadata["choices"] is not None:
        plain = str if get_origin(hint) is Literal else hint  # the registry may have more names
        return Annotated[plain, OneOf(metadata["choices"])]
    if metadata["least"] is None:
        return hint
    number: Any = Count if metadata["least"] else Natural
    number = Annotated[number, Field(le=metadata["most"])]
    return number if hint is int else number | None
