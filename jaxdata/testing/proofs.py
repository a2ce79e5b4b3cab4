"""What is proven of a run, each proof a sentence (`jaxdata verify`, in a bounded time).

Plans, delivered batches and tokens keep the conservation law; batches are the same, bit for bit,
after restoring anywhere and on any number of hosts; these share the work of attention evenly.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, islice, pairwise
from typing import Any, cast

import numpy as np

from jaxdata.base.errors import InputError, counted
from jaxdata.base.ragged import AnyArray, Floats, Ints
from jaxdata.dataset.documents import Documents
from jaxdata.feed.layouts import leaves
from jaxdata.feed.loader import Loader
from jaxdata.feed.schedule import balance_of, window_of
from jaxdata.rows.map_datasets import known_rows, row_table
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.strategies import STRATEGIES
from jaxdata.rows.table import Batch, RowTable, Segments, in_batch_order

_MOST_ROWS = 400_000  # of a source whose plan is looked at: seconds
_STEPS = 64
"""whole batches that are looked at, spread over the run"""
_HOSTS = (8, 4, 2)
OpenLoader = Callable[..., Loader]


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
    random, loader = np.random.default_rng(seed), open_loader()
    steps, size = min(steps, len(loader)), loader.batch_sizes[0][1]
    proofs: dict[str, Callable[[], str]] = {
        "plan": lambda: _plan(loader.rows),
        "mixture": lambda: _mixture(loader.rows, random),
        "contents": lambda: _contents(loader, steps, random),
        "resuming": lambda: _resuming(open_loader, steps),
        "hosts": lambda: _hosts(open_loader, steps),
        "workers": lambda: _workers(open_loader, steps),
        "balance": lambda: _balance(loader.rows, size, steps, hosts, microbatches),
    }
    for name, proof in proofs.items():
        try:
            yield Proof(name, True, proof())
        except AssertionError as error:
            yield Proof(name, False, str(error))


def _plan(rows: Any) -> str:
    tables = _packed_tables(rows)
    targets = assert_rows_conserve(rows, most=_MOST_ROWS)
    whole = all(len(table) <= _MOST_ROWS for table in tables)
    crops = not all(STRATEGIES[table.settings.strategy].keeps_all for table in tables)
    often = "at most once (crop)" if crops else "exactly once"
    return (
        f"an epoch of {counted(len(tables), 'source')} has each of its {targets:,} targets {often}"
        if whole
        else f"no target comes twice among {targets:,} (up to {_MOST_ROWS:,} rows of a source)"
    )


def _mixture(rows: Any, random: np.random.Generator) -> str:
    if not rows.table.intervals:
        return "there is one source only"
    starts = [0, *random.integers(0, max(len(rows), 1), 9).tolist()]
    seen = assert_mixture_takes_every_row(rows, starts, 10_000)
    return (
        f"no row of a source is skipped or repeated: {seen:,} rows checked in {len(starts)} places"
    )


def _contents(loader: Loader, steps: int, random: np.random.Generator) -> str:
    anywhere = random.integers(0, max(len(loader), 1), steps // 2)
    chosen = [*range(steps - steps // 2), *sorted(anywhere.tolist())]
    slots = assert_batches_hold_documents(_delivered(loader, chosen), loader.rows)
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


def _resuming(open_loader: OpenLoader, steps: int) -> str:
    restored = assert_resumes_everywhere(open_loader, tail=2, steps=steps)
    return f"restored at {restored} steps: the same state, the same batches after it"


def _hosts(open_loader: OpenLoader, steps: int) -> str:
    sizes = [size for _, size in open_loader().batch_sizes]
    hosts = [n for n in (2, 3, 4, 8) if not any(size % n for size in sizes)]
    if not hosts:
        return f"not tested: a batch of {sizes[0]} rows is not divisible by 2, 3, 4 or 8"
    count = assert_same_on_hosts(lambda shard: open_loader(shard=shard), hosts, steps=steps)
    return f"{', '.join(map(str, hosts))} hosts make the same {count} batches as one"


def _workers(open_loader: OpenLoader, steps: int) -> str:
    count = 0
    for workers in (1, 3):
        here, there = open_loader(num_workers=0), open_loader(num_workers=workers)
        count = assert_same_batches(islice(here, steps), islice(there, steps))
        here.close()
        there.close()
    return f"1 and 3 worker processes make the same {count} batches as none"


def _balance(rows: Any, size: int, steps: int, hosts: int, microbatches: int) -> str:
    if size % (hosts * microbatches):
        parts = counted(hosts, "host") + (f" of {microbatches} micro-batches" * (microbatches > 1))
        return f"not tested: a batch of {size} rows is not divisible by {parts}"
    if len(rows) < size:
        return f"not tested: {counted(len(rows), 'row')} are not one batch of {size}"
    even: Any = {"batch_size": size, "balance": "attention", "microbatches": microbatches}
    group = [Loader(rows, shard=(host, hosts), **even) for host in range(hosts)]
    whole = Loader(rows, batch_size=size)
    for step, batch, dealt in zip(range(steps), whole, joined(group), strict=False):
        if rows_of([batch]) != rows_of([dealt]):
            raise AssertionError(f"step {step} has other rows with balance than without it")
    for loader in (whole, *group):
        loader.close()
    found = host_work(rows, batch_size=size, hosts=hosts, microbatches=microbatches)
    return f"{counted(steps, 'step')} of the same rows; {found}"


def assert_rows_conserve(rows: Any, *, epoch: int = 0, most: int | None = None) -> int:
    """Check, from lengths alone, that an epoch trains each target of each document exactly once.

    At most once with a strategy that drops tokens (`crop`); the summary counts the dropped ones.
    Stored loss masks take targets out of the loss later, and only there.

    Args:
        rows: the result of `pack` or `mix`.
        epoch: the epoch to check.
        most: rows of each source to check; for a longer source, only repetitions are found. None
            for all.

    Returns:
        The number of targets accounted for.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> assert_rows_conserve(rows)
    4
    """
    return sum(_conserved(table, epoch, most) for table in _packed_tables(rows))


def _packed_tables(rows: Any) -> list[PackedRows]:
    """The packed sources of rows made by `pack` or `mix`."""
    table = row_table(rows)
    if table is None or not table.sources:
        raise TypeError(f"expected rows as pack or mix return them, got {rows!r}")
    return [cast(PackedRows, source) for source in table.sources.values()]


def _conserved(table: PackedRows, epoch: int, most: int | None) -> int:
    name, dealt = table.documents[0].name, table.deal(epoch)
    looked_at = dealt.rows if most is None else min(most, dealt.rows)
    lengths = np.asarray(table.documents[0].lengths).astype(np.int64)
    chosen = table.first_row(epoch) + np.arange(looked_at)
    document, begin, end = _targets(table.segments(chosen), lengths)
    same = document[1:] == document[:-1]
    twice = np.flatnonzero(same & (begin[1:] < end[:-1]))
    if len(twice):
        at = twice[0] + 1
        raise AssertionError(f"{name}: target {begin[at]} of document {document[at]} comes twice")
    trained = int((end - begin).sum())
    targets = int(np.maximum(lengths - 1, 0).sum())
    keeps_all = STRATEGIES[table.settings.strategy].keeps_all
    dropped = 0 if keeps_all else dealt.targets - dealt.whole.trained_tokens
    # Without repetitions, equal totals mean that nothing is missing.
    if looked_at == dealt.rows and trained + dropped != targets:
        raise AssertionError(
            f"{name}: {targets} targets, {trained} of them in rows, {dropped} dropped: "
            f"{targets - trained - dropped} are missing"
        )
    return trained


def _targets(found: Segments, lengths: Ints) -> tuple[Ints, Ints, Ints]:
    """Documents, and the tokens `[begin, end)` of them that segments train, sorted."""
    begin = found.start + found.context + 1
    end = np.minimum(found.start + found.slots + 1, lengths[found.document])
    order = np.lexsort((begin, found.document))
    order = order[begin[order] < end[order]]
    return found.document[order], begin[order], end[order]


def assert_mixture_takes_every_row(mixed: Any, starts: list[int], count: int) -> int:
    """Check that a mixture takes the rows of each source in order, without gaps.

    Args:
        mixed: the result of `mix`.
        starts: rows of the mixture from which to check.
        count: rows to check from each.

    Returns:
        The number of rows checked.
    """
    bounds = [0, *(each["row"] for each in mixed.table.amendments), len(mixed)]
    return sum(
        _takes_every_row(mixed, max(start, first), min(start + count, end))
        for start in starts
        for first, end in pairwise(bounds)
    )


def _takes_every_row(mixed: Any, start: int, stop: int) -> int:
    """Check rows of one recipe."""
    if start >= stop:
        return 0
    _, source, rank = mixed.table.select(np.arange(start, stop))
    inside = [i for i in mixed.table.intervals if i.start < stop and i.start + i.rows > start]
    used = zip(mixed.table.names, inside[0].used(start), inside[-1].used(stop), strict=False)
    for number, (name, before, after) in enumerate(used):
        if not np.array_equal(rank[source == number], np.arange(before, after)):
            raise AssertionError(f"rows {start} to {stop - 1}: not every row of {name} once")
    return stop - start


def assert_batches_hold_documents(
    batches: Iterable[tuple[Iterable[int], Mapping[str, Any]]], rows: Any
) -> int:
    """Check every slot of every delivered row against the documents.

    Args:
        batches: (row numbers, batch) pairs.
        rows: the result of `pack` or `mix`.

    Returns:
        The number of slots compared.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> loader = jaxdata.Loader(rows, batch_size=2)
    >>> assert_batches_hold_documents([([0, 1], next(loader))], rows)
    4
    """
    slots, table = 0, row_table(rows)
    assert table is not None, "expected rows as pack or mix return them"
    for numbers, batch in batches:
        for at, number in enumerate(numbers):
            for name, expected in _slow_row(table, number).items():
                found = np.asarray(batch[name][at])
                if not np.array_equal(found, expected):
                    slot = int(np.flatnonzero(found != expected)[0])
                    raise AssertionError(
                        f"row {number}: {name}[{slot}] is {found[slot]}, and {expected[slot]} by "
                        "its documents"
                    )
            slots += len(expected)
    return slots


def _slow_row(table: RowTable, number: int) -> Batch:
    """Build one row from its documents, by the definition of a row."""
    shape = table.section_at(number)
    row: Batch = {
        name: np.zeros(shape.seq_len, bool if name == "loss_mask" else np.int32)
        for name in ("inputs", "targets", "loss_mask", "segment_ids", "positions")
    }
    found, slot = table.segments(np.array([number])), 0
    fields = (found.source, found.document, found.start, found.slots, found.context)
    for segment, values in enumerate(zip(*(f.tolist() for f in fields), strict=True), 1):
        source, document, start, slots, context = values
        item = table.documents[source][document]
        tokens, mask = item["tokens"], item.get("loss_mask")
        for k in range(slots):
            target = start + k + 1
            row["inputs"][slot] = tokens[target - 1]
            row["segment_ids"][slot] = segment
            row["positions"][slot] = slot if shape.positions == "row" else k
            if target < len(tokens):
                row["targets"][slot] = tokens[target]
                row["loss_mask"][slot] = k >= context and (mask is None or mask[target])
            slot += 1
        slot += -slot % shape.multiple
    return row


def assert_exactly_once(
    batches: Iterable[Mapping[str, Any]], documents: Sequence[Documents], epochs: int = 1
) -> int:
    """Check that every token but the first of each document is a target exactly once.

    Compares the (input, target) pairs with loss in the batches with those of the documents. With
    distinct token ids (`distinct_documents`) that covers each token; in real text, each pair as
    often as it occurs. Stored masks are respected.

    Args:
        batches: all delivered batches, of all hosts.
        documents: the sources, as from `dataset.source(...)`.
        epochs: times that each token is expected.

    Returns:
        The number of targets with loss.

    >>> import jaxdata
    >>> docs = jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]])
    >>> loader = jaxdata.Loader(jaxdata.pack(docs, seq_len=2), batch_size=2)
    >>> assert_exactly_once(loader, [docs])
    4
    """
    found, once = Counter[int](), Counter[int]()
    for batch in batches:
        loss = np.asarray(batch["loss_mask"], bool)
        found.update(_pairs(*(np.asarray(batch[name])[loss] for name in ("inputs", "targets"))))
    for source in documents:
        for number in range(len(source)):
            item = source[number]
            pairs = _pairs(item["tokens"][:-1], item["tokens"][1:])
            once.update(compress(pairs, item["loss_mask"][1:]) if source.masked else pairs)
    expected = Counter({pair: times * epochs for pair, times in once.items()})
    missing, extra = expected - found, found - expected
    if missing or extra:
        raise AssertionError(
            f"{expected.total()} targets expected exactly {epochs}x, {found.total()} delivered: "
            f"{len(missing)} missing (e.g. {_show(missing)}), {len(extra)} too often "
            f"(e.g. {_show(extra)})"
        )
    return found.total()


def _pairs(inputs: AnyArray, targets: AnyArray) -> list[int]:
    pairs: list[int] = (inputs.astype(np.int64) << 32 | targets.astype(np.int64)).tolist()
    return pairs


def _show(pairs: Iterable[int]) -> str:
    some = sorted(pairs)[:3]
    return ", ".join(f"{pair >> 32}->{pair & 0xFFFFFFFF}" for pair in some) or "none"


def assert_resumes_everywhere(
    loader_factory: Callable[[], Loader], *, tail: int | None = None, steps: int | None = None
) -> int:
    """Check that restoring at every step gives the same state and the same batches after it.

    Args:
        loader_factory: makes a new loader at its first row.
        tail: batches to compare after each restore; None for all (quadratic in the steps).
        steps: number of first steps to check; None for all.

    Returns:
        The number of steps at which the loader was restored.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> assert_resumes_everywhere(lambda: jaxdata.Loader(rows, batch_size=1))
    3
    """
    loader = loader_factory()
    states, batches = [loader.get_state()], []
    for batch in islice(loader, steps):
        batches.append(batch)
        states.append(json.loads(json.dumps(loader.get_state())))
    loader.close()
    for step, state in enumerate(states):
        restored = loader_factory()
        restored.set_state(state)
        if restored.get_state() != state:
            raise AssertionError(f"step {step}: the state changed in restoring it")
        expected = batches[step:] if tail is None else batches[step : step + tail]
        assert_same_batches(expected, [next(restored) for _ in expected])
        restored.close()
    return len(states)


def assert_same_on_hosts(
    loader_factory: Callable[[tuple[int, int]], Loader],
    hosts: Sequence[int],
    *,
    steps: int | None = None,
) -> int:
    """Check that several hosts together make the batches of one, with the same state.

    Args:
        loader_factory: makes the loader of a `shard`.
        hosts: numbers of hosts to check; each must divide the batch size.
        steps: number of first steps to compare; None for all.

    Returns:
        The number of batches compared for each number of hosts.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> make = lambda shard: jaxdata.Loader(rows, batch_size=2, shard=shard)
    >>> assert_same_on_hosts(make, [1, 2])
    1
    """
    count = 0
    for number in hosts:
        one = loader_factory((0, 1))
        group = [loader_factory((host, number)) for host in range(number)]
        count = assert_same_batches(islice(one, steps), islice(joined(group), steps))
        different = [host for host in group if host.get_state() != one.get_state()]
        if different:
            raise AssertionError(f"{number} hosts: {len(different)} have another state than one")
        for loader in (one, *group):
            loader.close()
    return count


def joined(loaders: Sequence[Loader]) -> Iterator[Mapping[str, Any]]:
    """The whole batches of several hosts' loaders, each of which makes one part."""
    for parts in zip(*loaders, strict=True):
        yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def assert_same_batches(one: Iterable[Any], other: Iterable[Any]) -> int:
    """Check that two streams of batches are equal; returns the number of batches.

    Of batches of any structure, their leaves are compared.

    Args:
        one: batches, such as a loader.
        other: those that they should be.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> one, other = (jaxdata.Loader(rows, batch_size=1, num_workers=0) for _ in range(2))
    >>> assert_same_batches(one, other)
    2
    """
    count = 0
    for count, (a, b) in enumerate(zip(map(leaves, one), map(leaves, other), strict=True), 1):
        if set(a) != set(b):
            raise AssertionError(f"batch {count - 1}: keys {sorted(a)} against {sorted(b)}")
        for name in a:
            x, y = np.asarray(a[name]), np.asarray(b[name])
            if x.dtype != y.dtype or not np.array_equal(x, y):
                raise AssertionError(f"batch {count - 1}: {name} differs")
    return count


def rows_of(batches: Iterable[Any]) -> Counter[bytes]:
    """How often each row is in batches."""
    found: Counter[bytes] = Counter()
    for batch in batches:
        arrays = [np.asarray(leaf) for _, leaf in sorted(leaves(batch).items())]
        rows = max((len(array) for array in arrays if array.ndim), default=0)
        alike = [array for array in arrays if array.ndim and len(array) == rows]
        found.update(b"".join(array[row].tobytes() for array in alike) for row in range(rows))
    return found


def host_work(
    rows: Any, *, batch_size: int, hosts: int | None = None, microbatches: int = 1
) -> str:
    """Say how evenly hosts share the work of some steps, from lengths alone.

    That is the work of the slowest part of a step over the mean of all parts, as a mean over steps:
    without balance and with it.

    Args:
        rows: as `jaxdata.pack` and `mix` return them.
        batch_size: rows of a global batch.
        hosts: that share it; None for 8, or as many of them as divide it.
        microbatches: of a host.

    Raises:
        InputError: rows do not divide, or there is not one whole batch.
    """
    known = known_rows(rows)
    table = known.table if known else None
    count = len(rows) // batch_size
    hosts = next((n for n in _HOSTS if not batch_size % n), 1) if hosts is None else hosts
    if table is None or not count or batch_size % hosts:
        raise InputError(
            f"the work of {counted(hosts, 'host')} is not measured: expected rows as pack and mix "
            f"return them, at least {batch_size}, and a batch size that is a multiple of {hosts}"
        )
    without, balanced, moved = _measured(table, count, batch_size, hosts, microbatches)
    micro = f" in {microbatches} micro-batches" if microbatches > 1 else ""
    says = (
        f"attention of the slowest of {counted(hosts, 'host')} of "
        f"{counted(batch_size // hosts, 'row')}{micro} is {without:.3f} times the mean; with "
        f"loader.balance {balanced:.3f}"
    )
    if table.lanes == 1:
        return says
    return (
        f"{says}, which moves {100 * moved:.0f} % of the rows to hosts that read other lanes: from "
        "a bucket these come by exact ranges"
    )


def _measured(
    table: RowTable, steps: int, batch_size: int, hosts: int, microbatches: int
) -> tuple[float, float, float]:
    """Unevenness without balance and with it, and the share of the rows that change their host."""
    made_even = balance_of(table, "attention", {batch_size: hosts}, microbatches)
    assert made_even is not None
    found, window, parts = list[list[float]](), window_of("attention"), hosts * microbatches
    for step in np.unique(np.linspace(0, steps - 1, _STEPS).astype(np.int64)).tolist():
        numbers = np.arange(step * batch_size, (step + 1) * batch_size)
        section = table.section_at((step + 1) * batch_size - 1)
        plain = in_batch_order(section, numbers)
        dealt = made_even.deal(section, [plain], batch_size)[0]
        work = (_uneven(section.row_work(order, window), parts) for order in (plain, dealt))
        by_host = zip(dealt.reshape(hosts, -1), plain.reshape(hosts, -1), strict=True)
        found.append([*work, 1 - float(np.mean([np.isin(*pair) for pair in by_host]))])
    without, balanced, moved = np.mean(found, axis=0).tolist()
    return without, balanced, moved


def _uneven(work: Ints, parts: int) -> float:
    load: Floats = work.reshape(parts, -1).sum(axis=1).astype(float)
    return float(load.max() / load.mean()) if load.any() else 1.0
