"""Checks of many files, a thread a core, and a report of them as lines or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from jaxdata.background import Threads
from jaxdata.format.storage import Store
from jaxdata.format.verify.damage import Damage, damage_of_file, damage_of_manifest
from jaxdata.processes import available_cores
from jaxdata.progress import Advance

_NAMED = 8  # files that a line names
_NO_CHECKSUM = "no checksum (written by an earlier jaxdata), so damage may go unnoticed"

Check = tuple[int, Callable[[], list[Damage]]]
"""(bytes of shards it reads, what to do)"""


def file_check(store: Store, name: str, sha256: str, size: int | None = None) -> Check:
    """Compare a file with its checksum; only files of a known size count as progress."""
    return size or 0, partial(damage_of_file, store, name, sha256, size)


def totals(shards: Iterable[Any], *names: str) -> dict[str, int]:
    """The sums of some fields of shards, by name."""
    entries = list(shards)
    return {name: sum(getattr(entry, name) for entry in entries) for name in names}


@dataclass(frozen=True)
class Verification:
    """The result of checking files.

    Attributes:
        path: their folder or URL.
        counts: what they hold according to their manifest: shards, bytes of shards, ….
        damage: the damaged files, each once.
        remedy: what to do about damage.
        unchecked: columns and files without a checksum, written by an earlier jaxdata.
        unfinished: sources whose conversion is not finished; this is no damage.
        unknown_inputs: sources of whose inputs nothing tells a later conversion whether they have
            changed: `inputs.json` was deleted, or was never there; no damage.
        links: files that are links to somewhere outside the folder; no damage either.
    """

    path: str
    counts: dict[str, int]
    damage: tuple[Damage, ...]
    remedy: str
    unchecked: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    unknown_inputs: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.damage

    def as_json(self) -> dict[str, Any]:
        return {"whole": self.whole} | asdict(self)

    def __str__(self) -> str:
        """A line for each damaged file, what to do, and a summary."""
        lines = [f"DAMAGED {one}" for one in self.damage]
        lines += [self.remedy] if any(not one.remedy for one in self.damage) else []
        if self.unchecked:
            lines.append(f"{_NO_CHECKSUM}: {_some(self.unchecked)}")
        if self.unknown_inputs:
            named = _some(self.unknown_inputs)
            lines.append(f"without inputs.json, inputs that change are not noticed: {named}")
        if self.links:
            lines.append(f"links to files outside the folder: {_some(self.links)}")
        lines += [
            f"unfinished: {name}; run the same conversion again to finish it"
            for name in self.unfinished
        ]
        counts = [f"{n:,} {what}" for what, n in self.counts.items() if what != "bytes"]
        size = f"{self.counts['bytes'] / 1e6:,.1f} MB"
        found = f"{len(self.damage)} damaged" if self.damage else "whole"
        return "\n".join([*lines, f"{self.path}: {found} ({', '.join([*counts, size])})"])


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED:,} more (--json names all)" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def verify_files(
    store: Store,
    manifest: str,
    checks: Iterable[Check],
    *,
    threads: int | None,
    progress: Advance | None,
    unchecked: Iterable[str] = (),
    **found: Any,
) -> Verification:
    """Compare a manifest with its own checksum and, unless it is damaged, run the checks.

    `found` are the other attributes of :class:`Verification`.
    """
    damage, no_checksum = damage_of_manifest(store, manifest)
    return Verification(
        path=store.url,
        damage=damage or run_checks(checks, threads, progress),
        unchecked=(*no_checksum, *unchecked),
        **found,
    )


def run_checks(
    checks: Iterable[Check], threads: int | None, progress: Advance | None
) -> tuple[Damage, ...]:
    """Run all checks; returns the first damage of each file, in the order of the checks."""
    checks = list(checks)
    done, total = 0, sum(size for size, _ in checks)
    found: dict[int, list[Damage]] = {}
    with Threads(threads or available_cores()) as pool:
        for number, damage in pool.ended((n, check) for n, (_, check) in enumerate(checks)):
            found[number] = damage
            done += checks[number][0]
            if progress:
                progress(done, total)
    first: dict[str, Damage] = {}
    for number in range(len(checks)):
        for one in found[number]:
            first.setdefault(one.file, one)
    return tuple(first.values())
