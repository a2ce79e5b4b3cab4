"""Whatever happens to a file is named by opening, verifying or training, or changes nothing."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path, PurePath
from random import Random
from typing import Any, NamedTuple

import pytest

from jaxdata.base.errors import JaxdataError
from jaxdata.dataset.manifest import checked_bytes
from tests.converter.here import tree
from tests.damage.harm import content, little_memory, seal
from tests.damage.specimens import SPECIMENS, Lists, Specimen, copied, files_of, part_of

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


def mutate(folder: Path, random: Random) -> Mutation:
    """Damage one file of a folder, or exchange two."""
    names = files_of(folder)
    kind = random.choice(sorted({PurePath(name).suffix for name in names}))  # there are many shards
    name = random.choice([name for name in names if name.endswith(kind)])
    path = folder / name
    if name.endswith((".json", ".receipt")) and random.random() < 0.6:
        return _change_json(path, name, random)
    if random.random() < 0.15:
        path.unlink()
        return Mutation([name], "deleted")
    if random.random() < 0.2:
        other = random.choice([each for each in names if each.endswith(path.suffix)])
        ours, theirs = path.read_bytes(), (folder / other).read_bytes()
        content(theirs)(path)
        if random.random() < 0.5:
            return Mutation([name], f"{other} in its place")
        content(ours)(folder / other)
        return Mutation([name, other], "exchanged")
    what = random.choice(sorted(_BYTES))
    content(_BYTES[what](bytearray(path.read_bytes() or b"\0"), random))(path)
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
    was = path.read_bytes()
    fields = json.loads(checked_bytes(was) or was)
    what = ", ".join(_change(fields, random) for _ in range(random.randint(1, 2)))
    changed, sealed = json.dumps(fields).encode(), random.random() < 0.7
    if path.suffix == ".receipt":  # nobody seals one anew: it is of a conversion under way
        changed, sealed = changed + was[-32:], False
    elif sealed and isinstance(fields, dict) and "sha256" in fields:
        changed = seal(fields)
    else:
        sealed = sealed and name != "dataset.json"
    content(changed)(path)
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


# Of 1,900 mutations, how many each kind gets.
SHARES = {"dataset": 1_200, "rows": 300, "conversion": 300, "checkpoints": 100}

CHECKED_LATER = r"\.array_record$|\.arrays$|/views/|^batch_key/"
"""Files whose checksums only `jaxdata verify` reads."""


@pytest.mark.parametrize("kind", SPECIMENS)
def test_some_damage_is_named_or_harmless(kind: str, tmp_path: Path) -> None:
    _damage(tmp_path / kind, kind, range(max(2, SHARES[kind] // 100)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("kind", SPECIMENS)
def test_much_damage_is_named_or_harmless(kind: str, part: int, tmp_path: Path) -> None:
    some = SHARES[kind] // 10
    _damage(tmp_path / kind, kind, range(1_000 + part * some, 1_000 + (part + 1) * some))


def _damage(whole: Path, kind: str, seeds: range) -> None:
    specimen = SPECIMENS[kind]
    specimen.make(whole)
    before = tree(whole)
    with copied(whole) as copy:
        written = specimen.read(copy)
    found = []
    for seed in seeds:
        with copied(whole) as copy:
            done = mutate(copy, Random(f"{kind} {seed}"))
            if problem := _problem(copy, specimen, done, written):
                found.append(f"{seed}: {', '.join(done.files)}: {done.what}: {problem}")
    assert tree(whole) == before, "somebody wrote into a file in place"
    assert not found, f"{len(found)} of {len(seeds)}:\n" + "\n".join(found)


def _problem(copy: Path, specimen: Specimen, done: Mutation, written: Lists) -> str:
    """What is wrong with what is said and read of a damaged folder; "" if nothing is."""
    with little_memory() if done.what.endswith(")") else nullcontext():
        said, found = "", None
        try:
            said = specimen.look(copy)
        except JaxdataError as error:
            said = str(error)
        try:
            found = specimen.read(copy)
        except JaxdataError as error:
            said += f"\n{error}"
    named = any(said and part_of(name) in said for name in done.files)
    if found is None:
        return "" if named or done.sealed else f"nobody names it: {said}"
    if done.sealed:
        return "" if named or _are_of(found, written) else "documents that nobody wrote are read"
    if found == written or (named and any(re.search(CHECKED_LATER, name) for name in done.files)):
        return ""
    keys = [key for key, values in written.items() if found.get(key) != values]
    return f"{', '.join(keys)} differ, and what is said is: {said!r}"


def _are_of(found: Lists, written: Lists) -> bool:
    """Whether each list is a part of one that was written, in its order."""

    def inside(some: list[Any], among: list[Any]) -> bool:
        following: Iterator[Any] = iter(among)
        return all(each in following for each in some)

    return all(any(inside(each, every) for every in written.values()) for each in found.values())
