"""What a trainer's own log says of its data: numbers by name, for all hosts together."""

from __future__ import annotations

from jaxdata.feed.batch_iterator import BatchIterator


def measures(loader: BatchIterator) -> dict[str, float]:
    """Tokens and epochs of each source so far, and the seconds that this process waited.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0]], name="web"), seq_len=2)
    >>> loader = jaxdata.Loader(rows, batch_size=2)
    >>> next(loader)["inputs"].shape, measures(loader)["data/tokens"]
    ((2, 2), 3)
    """
    report = loader.report()
    found: dict[str, float] = {
        "data/wait_seconds": loader.wait_seconds,
        "data/tokens": report.tokens,
        "data/padding_share": report.padding_share,
    }
    for name, source in report.sources.items():
        found[f"data/tokens/{name}"] = source.tokens
        found[f"data/epochs/{name}"] = source.epochs
    return found
