"""What `jaxdata verify` proves of a config, in a bounded time: each proof is a sentence."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from jaxdata.base.wording import counted
from jaxdata.feed.loader import Loader
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.testing import conservation, resuming
from jaxdata.testing.work import host_work

OpenLoader = Callable[..., Loader]
_MOST_ROWS = 400_000  # of a source whose plan is looked at: seconds


@dataclass(frozen=True)
class Proof:
    """What was proved or checked, or what was found instead.

    >>> Proof("hosts", True, "not tested: a batch of one row").tested
    False
    """

    name: str
    holds: bool
    says: str
    warning: str = ""
    """a word instead of "ok", where it holds but should be noticed"""

    @property
    def tested(self) -> bool:
        """Whether it could be told at all; else it holds, and says why."""
        return not self.says.startswith("not tested: ")

    def described(self) -> dict[str, Any]:
        """The same as plain values, with the word that is printed before it."""
        mark = (self.warning or "ok") if self.holds else "FAILED"
        return {"name": self.name, "ok": self.holds, "mark": mark, "says": self.says}


def prove(
    open_loader: OpenLoader,
    *,
    steps: int = 20,
    seed: int = 0,
    hosts: int = 8,
    microbatches: int = 1,
) -> Iterator[Proof]:
    """Prove what jaxdata promises of a loader, one promise after the other.

    Args:
        open_loader: makes a new loader, with `shard=` and `num_workers=` as given.
        steps: how many steps to look at: half of them the first, half sampled at random.
        seed: for the random half.
        hosts: that share the work of a batch, for what `balance` makes of it.
        microbatches: of a host, as `jaxdata.Loader` takes them.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> make = lambda **given: jaxdata.Loader(rows, batch_size=2, **given)
    >>> [proof.name for proof in prove(make) if proof.holds][:3]
    ['plan', 'mixture', 'contents']
    """
    proofs: dict[str, Callable[[OpenLoader, int, Any], str]] = {
        "plan": _plan,
        "mixture": _mixture,
        "contents": _contents,
        "resuming": _resuming,
        "hosts": _hosts,
        "workers": _workers,
        "balance": partial(_balance, hosts=hosts, microbatches=microbatches),
    }
    random = np.random.default_rng(seed)
    steps = min(steps, len(open_loader()))
    for name, proof in proofs.items():
        try:
            yield Proof(name, True, proof(open_loader, steps, random))
        except AssertionError as error:
            yield Proof(name, False, str(error))


def _plan(open_loader: OpenLoader, _steps: int, _random: Any) -> str:
    rows = open_loader().rows
    tables = conservation.packed_tables(rows)
    targets = conservation.assert_rows_conserve(rows, most=_MOST_ROWS)
    whole = all(len(table) <= _MOST_ROWS for table in tables)
    crops = not all(STRATEGIES[table.settings.strategy].keeps_all for table in tables)
    often = "at most once (crop)" if crops else "exactly once"
    return (
        f"an epoch of {counted(len(tables), 'source')} has each of its {targets:,} targets {often}"
        if whole
        else f"no target comes twice among {targets:,} (up to {_MOST_ROWS:,} rows of a source)"
    )


def _mixture(open_loader: OpenLoader, _steps: int, random: Any) -> str:
    rows = open_loader().rows
    if not rows.table.intervals:
        return "there is one source only"
    starts = [0, *random.integers(0, max(len(rows), 1), 9).tolist()]
    seen = conservation.assert_mixture_takes_every_row(rows, starts, 10_000)
    return (
        f"no row of a source is skipped or repeated: {seen:,} rows checked in {len(starts)} places"
    )


def _contents(open_loader: OpenLoader, steps: int, random: Any) -> str:
    loader = open_loader()
    anywhere = random.integers(0, max(len(loader), 1), steps // 2)
    chosen = [*range(steps - steps // 2), *sorted(anywhere.tolist())]
    slots = conservation.assert_batches_hold_documents(_delivered(loader, chosen), loader.rows)
    loader.close()
    return f"{len(chosen)} steps hold what the documents hold: {slots:,} slots, all five arrays"


def _delivered(loader: Loader, steps: list[int]) -> Iterator[tuple[list[int], Any]]:
    for step in steps:
        if loader.step != step:
            loader.seek(step=step)
        rows = loader.ordered_rows(step)
        places = np.flatnonzero(rows >= 0)
        batch = {name: array[places] for name, array in next(loader).items()}
        yield rows[places].tolist(), batch


def _resuming(open_loader: OpenLoader, steps: int, _random: Any) -> str:
    restored = resuming.assert_resumes_everywhere(open_loader, tail=2, steps=steps)
    return f"restored at {restored} steps: the same state, the same batches after it"


def _hosts(open_loader: OpenLoader, steps: int, _random: Any) -> str:
    sizes = [size for _, size in open_loader().batch_sizes]
    hosts = [n for n in (2, 3, 4, 8) if not any(size % n for size in sizes)]
    if not hosts:
        return f"not tested: a batch of {sizes[0]} rows is not divisible by 2, 3, 4 or 8"
    count = resuming.assert_same_on_hosts(
        lambda shard: open_loader(shard=shard), hosts, steps=steps
    )
    return f"{', '.join(map(str, hosts))} hosts make the same {count} batches as one"


def _workers(open_loader: OpenLoader, steps: int, _random: Any) -> str:
    count = 0
    for workers in (1, 3):
        here, there = open_loader(num_workers=0), open_loader(num_workers=workers)
        count = resuming.assert_same_batches(islice(here, steps), islice(there, steps))
        here.close()
        there.close()
    return f"1 and 3 worker processes make the same {count} batches as none"


def _balance(
    open_loader: OpenLoader, steps: int, _random: Any, *, hosts: int, microbatches: int
) -> str:
    plain = open_loader()
    size = plain.batch_sizes[0][1]
    if size % (hosts * microbatches):
        parts = counted(hosts, "host") + (f" of {microbatches} micro-batches" * (microbatches > 1))
        return f"not tested: a batch of {size} rows is not divisible by {parts}"
    if len(plain.rows) < size:
        return f"not tested: {counted(len(plain.rows), 'row')} are not one batch of {size}"
    settings: dict[str, Any] = {"balance": "attention", "microbatches": microbatches}
    group = [
        Loader(plain.rows, batch_size=size, shard=(host, hosts), **settings)
        for host in range(hosts)
    ]
    whole = Loader(plain.rows, batch_size=size)
    for step, batch, dealt in zip(range(steps), whole, resuming.joined(group), strict=False):
        same = resuming.rows_of([batch]) == resuming.rows_of([dealt])
        if not same or _shapes(batch) != _shapes(dealt):
            raise AssertionError(f"step {step} has other rows with balance than without it")
    for loader in (plain, whole, *group):
        loader.close()
    found = host_work(plain.rows, batch_size=size, hosts=hosts, microbatches=microbatches)
    return f"{counted(steps, 'step')} of the same rows; {found}"


def _shapes(batch: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in batch.items()}
