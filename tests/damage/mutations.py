"""Damage drawn at random: bits, ends, places and whole files; values of JSON, sealed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path, PurePath
from random import Random
from typing import Any, NamedTuple

from jaxdata.dataset.checksums import checked_bytes
from tests.damage.specimens import files_of
from tests.dataset.strangers import seal

_NUMBERS = [*range(-2, 40), 2**16, 2**31, 2**32, 2**53, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30]
_NAMES = ["", ".", "..", "../x", "/dev/zero", "a/../../b", "/etc/passwd", "train/web", "a\0", "é"]
_OTHERS = [None, True, 0.5, float("nan"), float("inf"), [], {}, [[]], [0], {"a": 1}, "uint32"]


class Mutation(NamedTuple):
    """What was done to which files.

    Attributes:
        files: their names, as they were.
        what: for people.
        sealed: whether checksums were made to agree, as only somebody can who means it.
    """

    files: list[str]
    what: str
    sealed: bool = False


def write(path: Path, content: bytes) -> None:
    """Replace a file that may be linked elsewhere."""
    path.unlink()
    path.write_bytes(content)


def mutate(folder: Path, random: Random) -> Mutation:
    """Damage one file of a folder, or exchange two."""
    names = files_of(folder)
    kinds = sorted({PurePath(name).suffix for name in names})
    kind = random.choice(kinds)  # there are many shards
    name = random.choice([name for name in names if name.endswith(kind)])
    path = folder / name
    if name.endswith((".json", ".receipt")) and random.random() < 0.6:
        return _change_json(path, name, random)
    if random.random() < 0.15:
        path.unlink()
        return Mutation([name], "deleted")
    if random.random() < 0.2:
        other = random.choice([each for each in names if each.endswith(path.suffix)])
        content, theirs = path.read_bytes(), (folder / other).read_bytes()
        write(path, theirs)
        if random.random() < 0.5:
            return Mutation([name], f"{other} in its place")
        write(folder / other, content)
        return Mutation([name, other], "exchanged")
    what = random.choice(sorted(_BYTES))
    write(path, _BYTES[what](bytearray(path.read_bytes() or b"\0"), random))
    return Mutation([name], what)


def _flip(data: bytearray, random: Random) -> bytes:
    for _ in range(random.randint(1, 3)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def _swap(data: bytearray, random: Random) -> bytes:
    size = random.randint(1, 1 + len(data) // 4)
    first, second = (random.randrange(len(data)) // size * size for _ in range(2))
    one, other = data[first : first + size], data[second : second + size]
    if len(one) == len(other):
        data[first : first + size], data[second : second + size] = other, one
    return bytes(data)


_BYTES: dict[str, Callable[[bytearray, Random], bytes]] = {
    "bits": _flip,
    "places exchanged": _swap,
    "its end cut off": lambda data, random: bytes(data[: random.randrange(len(data))]),
    "some bytes cut off": lambda data, random: bytes(data[: -random.choice([1, 2, 4, 8, 32])]),
    "its beginning cut off": lambda data, random: bytes(data[random.choice([1, 4, 8, 64]) :]),
    "more behind it": lambda data, random: bytes(data) + random.randbytes(random.randint(1, 40)),
    "doubled": lambda data, random: bytes(data * 2),
    "zeros": lambda data, random: bytes(len(data)),
}


def _change_json(path: Path, name: str, random: Random) -> Mutation:
    content = path.read_bytes()
    fields = json.loads(checked_bytes(content) or content)
    what = ", ".join(_change(fields, random) for _ in range(random.randint(1, 2)))
    changed, sealed = json.dumps(fields).encode(), random.random() < 0.7
    if path.suffix == ".receipt":  # nobody seals one anew: it is of a conversion under way
        changed, sealed = changed + content[-32:], False
    elif sealed and isinstance(fields, dict) and "sha256" in fields:
        changed = seal(fields)
    else:
        sealed = sealed and name != "dataset.json"
    write(path, changed)
    return Mutation([name], what, sealed)


def _change(fields: Any, random: Random) -> str:
    """Change a value, remove it, say it twice, or call it otherwise."""
    places = _places(fields)
    if not places:
        return "nothing"
    *before, last = place = random.choice(places)
    for key in before:
        fields = fields[key]
    value = deepcopy(random.choice([*_NUMBERS[::4], *_NUMBERS[-9:], *_NAMES, *_OTHERS]))
    what = random.choice(["set", "set", "removed", "renamed", "twice"])
    if what == "removed":
        del fields[last]
    elif what == "renamed" and isinstance(fields, dict):
        fields[str(value)] = fields.pop(last)
    elif what == "twice" and isinstance(fields, list):
        fields.append(fields[last])
    else:
        fields[last] = value
    return f"{'.'.join(map(str, place))} {what} ({value!r})"


def _places(value: Any) -> list[tuple[Any, ...]]:
    """The path of every value in nested ones."""
    if not isinstance(value, (dict, list)):
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [(key, *rest) for key, inner in items for rest in [(), *_places(inner)]]
