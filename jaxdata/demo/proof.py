"""The proof of the demo: other hosts make every row of the run again, and none differs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from jaxdata.config import Config, load
from jaxdata.testing.proofs import Proof
from jaxdata.testing.resuming import joined
from jaxdata.train.digests import batch_digest
from jaxdata.train.log import read_log


def prove_rows(config: Config, log: Path, *, hosts: int) -> Proof:
    """Compare the digests in a run's log with those of the batches that `hosts` loaders make.

    The proof holds if every step is in the log and trained these rows, each time it was trained.
    """
    logged: dict[int, list[str]] = {}
    for record in read_log(log):
        if "rows" in record:
            logged.setdefault(record["step"], []).append(record["rows"])
    expected = recompute_digests(config, hosts)[: config.train.steps]
    missing = [step for step in range(len(expected)) if step not in logged]
    differing = [n for n, digest in enumerate(expected) if set(logged.get(n, ())) - {digest}]
    if missing or differing:
        says = (
            f"{log}: of {len(expected)} steps, {len(missing)} are not in the log (first: "
            f"{missing[:1]}) and {len(differing)} have other rows than {hosts} hosts make "
            f"(first: {differing[:1]})"
        )
        return Proof("rows", False, says)
    compared = sum(map(len, logged.values()))
    rows, repeated = compared * config.loader.first_batch_size, compared - len(expected)
    says = f"{rows:,} rows compared: not one differs ({repeated} steps were trained twice)"
    return Proof("rows", True, says)


def recompute_digests(config: Config, hosts: int) -> list[str]:
    """The digest of every batch, from numpy loaders that make one part of it each."""
    with ExitStack() as stack:
        loaders = [load(config, shard=(host, hosts)) for host in range(hosts)]
        for loader in loaders:
            stack.callback(loader.close)
        return [batch_digest(batch) for batch in joined(loaders)]
