"""Whatever happens to a file is named by opening, verifying or training, or changes nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest

from jaxdata.base.errors import JaxdataError
from tests.damage.mutations import Mutation, mutate
from tests.damage.specimens import SPECIMENS, Lists, Specimen, copied, files_of, part_of
from tests.dataset.strangers import little_memory

# Of 2,000 mutations, how many each kind gets.
SHARES = {"dataset": 1_200, "rows": 300, "conversion": 300, "pages": 100, "checkpoints": 100}

CHECKED_LATER = r"\.array_record$|\.arrays$|/views/|^batch_key/"
"""Files whose checksums only `jaxdata verify` reads."""


@pytest.mark.parametrize("kind", SPECIMENS)
def test_some_damage_is_named_or_harmless(kind: str, tmp_path: Path) -> None:
    _damage(tmp_path / kind.replace(" ", "-"), kind, range(max(2, SHARES[kind] // 100)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("kind", SPECIMENS)
def test_much_damage_is_named_or_harmless(kind: str, part: int, tmp_path: Path) -> None:
    some = SHARES[kind] // 10
    seeds = range(1_000 + part * some, 1_000 + (part + 1) * some)
    _damage(tmp_path / kind.replace(" ", "-"), kind, seeds)


def _damage(whole: Path, kind: str, seeds: range) -> None:
    specimen = SPECIMENS[kind]
    specimen.make(whole)
    before = _contents(whole)
    with copied(whole) as copy:
        written = specimen.read(copy)
    found = []
    for seed in seeds:
        with copied(whole) as copy:
            done = mutate(copy, Random(f"{kind} {seed}"))
            if problem := _problem(copy, specimen, done, written):
                found.append(f"{seed}: {', '.join(done.files)}: {done.what}: {problem}")
    assert _contents(whole) == before, "somebody wrote into a file in place"
    assert not found, f"{len(found)} of {len(seeds)}:\n" + "\n".join(found)


def _contents(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files_of(folder)
    }


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
    checked_later = any(re.search(CHECKED_LATER, name) for name in done.files)
    if found == written or (named and checked_later):
        return ""
    keys = [key for key, values in written.items() if found.get(key) != values]
    return f"{', '.join(keys)} differ, and what is said is: {said!r}"


def _are_of(found: Lists, written: Lists) -> bool:
    """Whether each list is a part of one that was written, in its order."""

    def inside(some: list[Any], among: list[Any]) -> bool:
        following: Iterator[Any] = iter(among)
        return all(each in following for each in some)

    return all(any(inside(each, every) for every in written.values()) for each in found.values())
