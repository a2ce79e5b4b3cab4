"""The proof: every row that was trained on, worked out again by other hosts, is the same row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxdata.config import Config, load
from jaxdata.errors import JaxdataError
from jaxdata.train.digests import batch_digest
from jaxdata.train.log import read_log

__all__ = ["Proof", "prove_rows", "recompute_digests"]


@dataclass(frozen=True)
class Proof:
    """What was compared, and that nothing differed.

    Attributes:
        steps: steps of the run.
        compared: digests compared; steps that both processes trained count twice.
        repeated: steps that were trained again after the kill.
        rows: rows those digests are of.
        hosts: how many hosts worked them out again.
    """

    steps: int
    compared: int
    repeated: int
    rows: int
    hosts: int


def prove_rows(config: Config, log: Path, *, hosts: int) -> Proof:
    """Compare the digests in a run's log with those that `hosts` loaders work out.

    Raises:
        JaxdataError: a step is missing from the log, or trained on other rows.
    """
    logged: dict[int, list[str]] = {}
    for record in read_log(log):
        if "rows" in record:
            logged.setdefault(record["step"], []).append(record["rows"])
    expected = recompute_digests(config, hosts)[: config.train.steps]
    missing = [step for step in range(len(expected)) if step not in logged]
    differing = [
        step for step, digest in enumerate(expected) if set(logged.get(step, ())) - {digest}
    ]
    if missing or differing:
        raise JaxdataError(
            f"{log}: of {len(expected)} steps, {len(missing)} are not in the log (first: "
            f"{missing[:1]}) and {len(differing)} have other rows than {hosts} hosts work out "
            f"(first: {differing[:1]})"
        )
    compared = sum(map(len, logged.values()))
    return Proof(
        steps=len(expected),
        compared=compared,
        repeated=compared - len(expected),
        rows=compared * config.loader.first_batch_size,
        hosts=hosts,
    )


def recompute_digests(config: Config, hosts: int) -> list[str]:
    """The digest of every batch, from numpy loaders that each make one part of it."""
    with ExitStack() as stack:
        loaders = [load(config, shard=(host, hosts)) for host in range(hosts)]
        for loader in loaders:
            stack.callback(loader.close)
        return [batch_digest(batch) for batch in _joined(loaders)]


def _joined(loaders: Sequence[Any]) -> Iterator[Mapping[str, np.ndarray]]:
    for parts in zip(*loaders, strict=True):
        yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
