"""What do hosts download to read a run from far away, over the bytes of the dataset?

The plans are real, of sources of made lengths: order of chunks, blocks, lanes and batches, and
every block that is looked at; the figures are those of `jaxdata preview --hosts`. Pages are 1 MiB,
blocks 8 MiB, rows 2048. "unsorted" leaves out the order inside batches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from harness import Report, arguments, machine, once, parse
from made_pages import MadePages, SampledRows

from jaxdata.look.read_costs import Cost, read_costs, total
from jaxdata.rows.mixing.mixture import mixture
from jaxdata.rows.mixing.phases import Phase

SEQ_LEN = 2048
TERABYTE = 10**12
FOUR = (0.6, 0.2, 0.1, 0.1)


class Unsorted(SampledRows):
    """The same rows; batches keep their order."""

    def batch_key(self, rows: Any) -> Any:
        """See `RowTable`."""
        return rows


def source(size: float, name: str = "train/made", kind: Any = SampledRows, **pack: Any) -> Any:
    """Rows of a source of so many bytes."""
    seed = sum(name.encode())
    return kind(MadePages(int(size), name=name, seed=seed), seq_len=SEQ_LEN, **pack)


def mixed(size: float, shares: Sequence[float], kind: Any = SampledRows, **pack: Any) -> Any:
    """A mixture of sources of `size` bytes in all, each read to its end."""
    tables = {f"s{k}": source(size * x, f"train/s{k}", kind, **pack) for k, x in enumerate(shares)}
    weights = dict(zip(tables, shares, strict=True))
    return mixture(tables, [Phase(weights=weights)], {}, "halt")


def uneven(count: int, power: int = 1) -> list[float]:
    """Shares that fall as 1/k, or a power of that."""
    weights = 1 / np.arange(1, count + 1) ** float(power)
    return list(weights / weights.sum())


def note(found: Cost, hosts: int) -> str:
    """The other figures of a line."""
    epoch = found.described(hosts)["host_epoch_bytes"]
    return (
        f"{found.gets:.2g} GETs; a host: {epoch / 1e9:.3g} GB an epoch, holds "
        f"{found.held_bytes / 1e6:,.0f} MB"
    )


def measure(report: Report, name: str, table: Any, clusters: Sequence[tuple[int, int]]) -> None:
    """A line for each number of hosts and batch size."""
    for hosts, batch in clusters:
        found: list[Cost] = []
        given = table, hosts, batch
        took = once(lambda found=found, given=given: found.append(total(read_costs(*given))))
        label = f"{name}: {batch:,} rows over {hosts:,} hosts"
        report.add(label, found[0].over, note=f"{note(found[0], hosts)}; {took:.0f} s")


def main() -> None:
    """Measure the cases of the design, and ten terabytes."""
    given = parse(arguments(__doc__ or ""))
    gib = 2**30 / (64 if given.quick else 1)
    facts = machine() | {"seq_len": SEQ_LEN, "page": "1 MiB", "block": "8 MiB"}
    report = Report("read_costs", "Downloaded over the dataset", "times", "less", facts=facts)
    lanes = {"lanes": 8 if given.quick else 512, "chunk_bytes": 2**20}
    for name, kind in (("one source", SampledRows), ("one source, unsorted", Unsorted)):
        measure(report, name, source(64 * gib, kind=kind, **lanes), [(48, 480)])
    four = [(8, 512), (64, 512), (64, 256)]
    measure(
        report, "four sources", mixed(640 * gib, FOUR, **lanes), four[: 1 if given.quick else None]
    )
    if not given.quick:
        measure(report, "four sources, unsorted", mixed(640 * gib, FOUR, Unsorted), four[1:2])
        many = mixed(4 * TERABYTE, uneven(256))
        measure(report, "256 sources, shares 1/k", many, [(8, 512), (32, 512), (128, 512)])
        steep = mixed(4 * TERABYTE, uneven(256, 2), chunk_bytes=2**20)
        measure(report, "256 sources, shares 1/k²", steep, [(8, 512), (32, 512), (128, 512)])
        big = source(10 * TERABYTE, lanes=8192)
        measure(report, "10 TB, 8,192 lanes", big, [(1024, 8192)])
        measure(report, "10 TB, 512 lanes", source(10 * TERABYTE), [(512, 8192), (1024, 8192)])
    report.show(given.json)


if __name__ == "__main__":
    main()
