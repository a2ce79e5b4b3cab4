"""Facts, JSON values by name: digests of them, and what differs between two sets of them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from jaxdata.base.wording import shortened

_SHOWN = 400  # characters of a value


def digest(value: Any) -> str:
    """The sha256 of a JSON value, in hex: equal values have equal digests.

    >>> digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def brief(value: Any, most: int = 160) -> Any:
    """A value itself if its JSON has at most `most` characters, else 8 hex digits of its digest."""
    return value if len(json.dumps(value)) <= most else digest(value)[:8]


def itemized(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with each entry of a dict or list as a fact of its own.

    >>> itemized({"seed": 0, "data": {"web": "a1"}, "shard": [0, 2]})
    {'seed': 0, 'data[web]': 'a1', 'shard[0]': 0, 'shard[1]': 2}
    """
    items: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            items |= {f"{name}[{key}]": inner for key, inner in value.items()}
        elif isinstance(value, list):
            items |= {f"{name}[{number}]": inner for number, inner in enumerate(value)}
        else:
            items[name] = value
    return items


def differences(
    was: Mapping[str, Any], now: Mapping[str, Any], words: tuple[str, str] = ("was", "is")
) -> dict[str, str]:
    """By name, sorted, "NAME was A, is B" for each fact that differs; absent equals None.

    >>> differences({"seed": 0, "epochs": 1}, {"seed": 7, "epochs": 1, "block": 9})
    {'block': 'block was absent, is 9', 'seed': 'seed was 0, is 7'}
    """
    names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return {
        name: f"{name} {words[0]} {_shown(was, name)}, {words[1]} {_shown(now, name)}"
        for name in names
    }


def _shown(facts: Mapping[str, Any], name: str) -> str:
    return shortened(repr(facts[name]), _SHOWN) if name in facts else "absent"
