"""JSON as a broken disk, a broken program or a stranger would leave it."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from jaxdata.base.errors import StateMismatch

JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63 - 1, 2**63, -(2**70), 10**400, 0.0, 1.5, 1e308),
    *(float("nan"), float("inf"), "", "0", "x" * 2000, "\ud800", "\x1b[31m", "[[0, 1]]"),
    *([], [[]], [0], [[0, 0]], [[5, 3]], [[-1, 4]], [[0, 2**64]], [[1, 2, 3, 4]], [["a", 1]]),
    *([[4, 6], [0, 8]], [[0, 8], [4, 6]], [[2, 9, 5]], [[0, 1.0]], [[True, 4]], [None], "row"),
    *({}, {"row": 1}, [{"row": -1}], [{"row": 3, "epochs": 2}], [{"row": 0, "was": 1}], {"": {}}),
]
DEEP = "[" * 900 + "]" * 900


def mutations(state: Any, count: int, seed: int) -> Iterator[Any]:
    """States that differ from a state in one place to four, or in one character of their text."""
    chance = random.Random(seed)
    text = json.dumps(state)
    made = 0
    while made < count:
        found = _spelt(text, chance) if chance.random() < 0.3 else _changed(state, chance)
        if found is not None:
            made += 1
            yield found


def _spelt(text: str, chance: random.Random) -> Any:
    at = chance.randrange(len(text))
    stop = at + chance.randrange(3)
    try:
        return json.loads(text[:at] + chance.choice('0123456789-.eE"[]{},: xa') + text[stop:])
    except ValueError:
        return None  # no JSON: the reader of the file says so


def _changed(state: Any, chance: random.Random) -> Any:
    root = [copy.deepcopy(state)]
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        holder, key = chance.choice([(root, 0), *_places(root[0])])
        _change(holder, key, chance)
        if not root:
            return None
    return root[0]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place below a value: what holds it, and its key there."""
    found, todo = list[tuple[Any, Any]](), [value]
    while todo:
        one = todo.pop()
        keys = one if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        found += [(one, key) for key in keys]
        todo += [one[key] for key in keys]
    return found


def _change(holder: Any, key: Any, chance: random.Random) -> None:
    kind = chance.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder[key], int | float):
        holder[key] += chance.choice((-1, 1, 8))
    elif kind == 2 and isinstance(holder, dict):
        holder[f"{key}s"] = holder.pop(key)
    elif kind == 3 and isinstance(holder[key], list):
        holder[key] += chance.choice((holder[key], copy.deepcopy(JUNK[-10:])))
    elif kind == 4:
        holder[key] = json.loads(DEEP)
    else:
        holder[key] = copy.deepcopy(chance.choice(JUNK))


def refusal(call: Any, state: Any) -> str | None:
    """What our error says about a state; None where it is taken. Other errors are raised."""
    try:
        call(state)
    except StateMismatch as error:
        said = str(error)
        said.encode()  # it can be printed
        return said
    return None
