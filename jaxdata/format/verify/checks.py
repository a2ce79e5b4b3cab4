"""Many files looked at, a thread a core, and what was found said in lines or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from typing import Any

from jaxdata.format.verify.damage import Damage
from jaxdata.processes import available_cores
from jaxdata.progress import Advance

__all__ = ["Check", "Verification", "run_checks"]

_NAMED = 8  # parts without a checksum that a line names

Check = tuple[int, Callable[[], list[Damage]]]
"""(bytes of shards it reads, what to do)"""


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        path: where the files are.
        counts: what they hold, as the manifest says: how many shards, bytes of shards, ….
        damage: what is not as it should be, a file once; nothing where all is whole.
        remedy: what to do about damage.
        unchecked: columns and files that have no checksum, as an earlier jaxdata wrote them.
        unfinished: sources that a conversion has begun and not finished; no damage.
    """

    path: str
    counts: dict[str, int]
    damage: tuple[Damage, ...]
    remedy: str
    unchecked: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage

    def as_json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"whole": self.whole} | asdict(self)

    def __str__(self) -> str:
        """Return a line for each damaged file, what to do, and a line for the whole."""
        lines = [f"DAMAGED {one}" for one in self.damage]
        lines += [self.remedy] if any(not one.remedy for one in self.damage) else []
        lines += [_without_checksum(self.unchecked)] if self.unchecked else []
        lines += [
            f"unfinished: {name}; the command that began it finishes it" for name in self.unfinished
        ]
        counts = [f"{n:,} {what}" for what, n in self.counts.items() if what != "bytes"]
        size = f"{self.counts['bytes'] / 1e6:,.1f} MB"
        found = f"{len(self.damage)} damaged" if self.damage else "whole"
        return "\n".join([*lines, f"{self.path}: {found} ({', '.join([*counts, size])})"])


def _without_checksum(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED:,} more (--json names all)" if len(names) > _NAMED else ""
    return (
        "no checksum, as an earlier jaxdata wrote it, so damage may go unseen: "
        f"{', '.join(names[:_NAMED])}{more}"
    )


def run_checks(
    checks: Iterable[Check], threads: int | None, progress: Advance | None
) -> tuple[Damage, ...]:
    """Do all; returns what is damaged in the order of the checks, of each file the first.

    Args:
        checks: what to do.
        threads: how many at a time; None for one a core.
        progress: called with (bytes of shards done, bytes of all shards).
    """
    checks = list(checks)
    done, total = 0, sum(size for size, _ in checks)
    with ThreadPoolExecutor(threads or available_cores()) as pool:
        running = {pool.submit(check): size for size, check in checks}
        try:
            for finished in as_completed(running):
                done += running[finished]
                if progress:
                    progress(done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    first: dict[str, Damage] = {}
    for future in running:
        for one in future.result():
            first.setdefault(one.file, one)
    return tuple(first.values())
