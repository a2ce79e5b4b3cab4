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
        epochs: epochs in the run; a page is fetched anew in each.

    >>> scattered_pages(pages=10, touches=1e6, hosts=4, epochs=1)
    Scattered(fetched=40.0, held=10.0)
    """
    mean, most = touches / hosts, int(touches / hosts + 8 * np.sqrt(touches / hosts) + 8)
    times = np.arange(most + 1)  # that a host touches a page: Poisson
    chance = np.exp(times * np.log(max(mean, 1e-300)) - mean - _log_factorials(most))
    open_then = np.where(times > 0, 1 - 0.5 ** (times - 1.0), 0)  # not all before, nor all after
    held = pages * float((chance * open_then).sum())
    fetched = pages * hosts * float(1 - np.exp(-mean)) * epochs
    return Scattered(round(fetched, 3), round(held, 3))


def _log_factorials(most: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The logarithms of 0! to most!."""
    return np.cumsum(np.append(0.0, np.log(np.arange(1, most + 1))))
