"""What a user names, as members: sources in the order of preference, then what stays whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxdata.dedup.member_texts import open_side
from jaxdata.dedup.members import Member
from jaxdata.documents.dataset import Dataset
from jaxdata.errors import InputError
from jaxdata.facts import digest
from jaxdata.wording import nearest

_SIDES = ("chosen", "rejected")


def sources_of(
    dataset: Dataset, split: str, names: Sequence[str] | None, view: str | None
) -> list[Member]:
    """The sources that may lose documents, in the order given; None for all of the split.

    The two sides of preference pairs are one.

    Raises:
        InputError: a source does not exist, is named twice, or is read through no such view.
    """
    if split not in dataset.splits:
        raise InputError(f"no split {split!r}: the dataset has {', '.join(dataset.splits)}")
    given = dataset.splits[split] if names is None else names
    full = [name if name in dataset.names else f"{split}/{name}" for name in given]
    members = _members(dataset, full, view=view, against=False)
    if names is not None and len({*full}) < len(full):
        raise InputError(f"a source is named twice in {', '.join(names)}")
    return members


def against_of(
    dataset: Dataset, names: Iterable[str], ours: Sequence[Member]
) -> tuple[list[Member], list[str]]:
    """The sources of the dataset that texts are compared with, and the names of benchmark files.

    A name is a split of the dataset, a source of one, or else files.
    """
    own = {side for member in ours for side in member.sides}
    full: list[str] = []
    files = []
    for name in names:
        if name in dataset.splits:
            full += [f"{name}/{source}" for source in dataset.splits[name]]
        elif name in dataset.names or f"{name}/{_SIDES[0]}" in dataset.names:
            full.append(name)
        elif _may_be_files(name):
            files.append(name)
        else:
            known = sorted([*dataset.splits, *dataset.names])
            raise InputError(
                f"against={name!r} is neither a split or source of {dataset.url} "
                f"({', '.join(known)}) nor a file{nearest(name, known)}"
            )
    members = _members(dataset, [name for name in full if name not in own], against=True)
    return members, files


def _may_be_files(name: str) -> bool:
    return "://" in name or "*" in name or Path(name).expanduser().exists()


def _members(
    dataset: Dataset, names: Iterable[str], *, view: str | None = None, against: bool
) -> list[Member]:
    found: dict[str, Member] = {}
    for name in names:
        pair, sides = _sides(dataset, name)
        if pair in found:
            continue
        opened = [open_side(dataset, side, view) for side in sides]
        listed = opened[0].numbers
        count = len(opened[0].documents) if listed is None else len(listed)
        fingerprint = digest([side.fingerprint for side in opened])
        found[pair] = Member(pair, count, fingerprint, sides, view, against)
    return list(found.values())


def _sides(dataset: Dataset, name: str) -> tuple[str, tuple[str, ...]]:
    """The name of what a source belongs to, and the sources whose documents are one there."""
    pair, _, side = name.rpartition("/")
    pair = pair if side in _SIDES else name
    sides = tuple(f"{pair}/{each}" for each in _SIDES)
    if all(each in dataset.names for each in sides):
        one, other = (len(dataset[each]) for each in sides)
        if one == other:
            return pair, sides
    split, _, source = name.partition("/")
    dataset.source(split, source)  # raises where there is none
    return name, (name,)
