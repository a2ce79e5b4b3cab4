"""Texts of a record by their keys, where a record may hold several of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxdata.converter.inputs.parsing import BadRecord, text_of
from jaxdata.converter.tasks.base import Record


def pairs_of(
    record: Record, prompt_keys: Sequence[str], completion_key: str
) -> Iterator[tuple[str, str]]:
    r"""Give the prompts and completions of a record.

    A key with dots goes into objects within, and into each object of a list: then there are as
    many pairs as the list has items, and fields outside it belong to each. Several prompt keys
    are joined by a blank line, empty ones left out.

    >>> record = {"task": "Add.", "cases": [{"in": "1+1", "out": "2"}, {"in": "2+2", "out": "4"}]}
    >>> list(pairs_of(record, ["task", "cases.in"], "cases.out"))
    [('Add.\n\n1+1', '2'), ('Add.\n\n2+2', '4')]
    """
    prompts = [_texts(record, key) for key in prompt_keys]
    completions = _texts(record, completion_key)
    lengths = {len(found) for found in (*prompts, completions) if isinstance(found, list)}
    if len(lengths) > 1:
        raise BadRecord("unequal numbers of prompts and completions")
    for number in range(lengths.pop() if lengths else 1):
        *parts, answer = (
            found if isinstance(found, str) else found[number] for found in (*prompts, completions)
        )
        yield "\n\n".join(filter(None, parts)), answer


def columns(*keys: str) -> tuple[str, ...]:
    """The columns of tables that hold some keys, each once.

    >>> columns("task", "cases.in", "cases.out")
    ('task', 'cases')
    """
    return tuple(dict.fromkeys(key.split(".")[0] for key in keys))


def _texts(value: Any, key: str) -> str | list[str]:
    """The text of a key, or those of all objects of the list that it goes through."""
    name, dot, rest = key.partition(".")
    if not dot or key in value:
        return text_of(value, key)
    if name not in value:
        raise BadRecord(f"no key {key!r}", tuple(map(str, value)))
    inner = value[name]
    if isinstance(inner, list):
        if not all(isinstance(one, Mapping) for one in inner):
            raise BadRecord(f"{name!r} is not a list of objects")
        found = [_texts(one, rest) for one in inner]
        if not all(isinstance(text, str) for text in found):
            raise BadRecord(f"{key!r} goes through more than one list")
        return [text for text in found if isinstance(text, str)]
    if not isinstance(inner, Mapping):
        raise BadRecord(f"{name!r} is not an object")
    return _texts(inner, rest)
