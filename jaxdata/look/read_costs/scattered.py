"""What a source costs that is dealt by single documents, estimated from its counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Scattered(NamedTuple):
    """Expected pages of all hosts, over the run."""

    fetched: float
    held: float
    """pages that a host holds in the middle of an epoch, which is when it holds most"""


def scattered_pages(pages: int, touches: float, hosts: int, epochs: float) -> Scattered:
    """Pages whose parts lie in rows anywhere in an epoch, each read by any host.

    Args:
        pages: pages of the source.
        touches: parts of rows that an epoch reads from one page.
        hosts: hosts, each as likely as another.
        epochs: epochs in the run, or a part of one; a page is fetched anew in each.

    >>> scattered_pages(pages=10, touches=1e6, hosts=4, epochs=1)
    Scattered(fetched=40.0, held=10.0)
    """
    whole, part = divmod(epochs, 1)
    fetched = sum(n * (1 - np.exp(-t / hosts)) for n, t in ((whole, touches), (1, part * touches)))
    held = _open(min(epochs, 1) * touches / hosts)
    return Scattered(round(float(pages * hosts * fetched), 3), round(pages * held, 3))


def _open(mean: float) -> float:
    """The share of pages of which a host has read some parts and not all: Poisson."""
    times = np.arange(int(mean + 8 * np.sqrt(mean) + 8))
    chance = np.exp(times * np.log(max(mean, 1e-300)) - mean - _log_factorials(len(times) - 1))
    some = np.where(times > 0, 1 - 0.5 ** (times - 1.0), 0)  # not all before, nor all after
    return float((chance * some).sum())


def _log_factorials(most: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The logarithms of 0! to most!."""
    return np.cumsum(np.append(0.0, np.log(np.arange(1, most + 1))))
