"""What a dataset may say, whoever wrote it: names below its folder, numbers within reason.

The types of the fields of every file that describes others. A file that says anything else is
refused before what it names is opened.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

MAX_RECORD_TOKENS = 2**29
"""a record stays below 4 GiB, masks included"""
_MAX_COUNT = 2**53  # the largest that every reader of JSON takes as it is
_MAX_ID = 2**32 - 1
_MAX_DEPTH = 32

# A part of a name: any but "", "." and "..".
_PART = r"(?:\.?[^./\x00][^/\x00]*|\.\.[^/\x00]+)"


def _name(pattern: str) -> Any:
    return Field(pattern=f"^{pattern}$", max_length=1024)


FileName = Annotated[str, _name(f"{_PART}(?:/{_PART})*")]
"""A file below the folder of a dataset."""
SourceName = Annotated[str, _name(f"{_PART}(?:/{_PART})+")]
"""`"<split>/<source>"`"""
FolderName = Annotated[str, _name(_PART)]
"""A folder directly below another."""
Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=_MAX_COUNT)]
TokenId = Annotated[int, Field(ge=-1, le=_MAX_ID)]
"""-1 for none"""
RecordTokens = Annotated[int, Field(ge=1, le=MAX_RECORD_TOKENS)]


def _shallow(facts: dict[str, Any]) -> dict[str, Any]:
    """Refuse values nested so deep that code which walks them would fail."""
    level, depth = _inside(facts), 1
    while level:
        depth += 1
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        level = [inner for value in level for inner in _inside(value)]
    return facts


def _inside(value: Any) -> list[Any]:
    """The dicts and lists in a dict or list."""
    values = value.values() if isinstance(value, dict) else value
    return [inner for inner in values if isinstance(inner, (dict, list))]


Facts = Annotated[dict[str, Any], AfterValidator(_shallow)]
"""JSON values by name that nothing is opened by."""
