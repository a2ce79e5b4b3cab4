"""What reading a run from far away costs: the figures."""

from __future__ import annotations

from dataclasses import dataclass

from jaxdata.look.read_costs.cluster import Cluster


@dataclass(frozen=True)
class Way:
    """What one way of fetching costs all hosts over the run."""

    gets: float
    """requests"""
    bytes: float
    first_batch_bytes: float
    """bytes before the first batch, of the host that fetches most"""


@dataclass(frozen=True)
class Costs:
    """The costs of one source, or of all."""

    rows: int
    """rows of the run"""
    epochs: float
    file_bytes: float
    """bytes of its files"""
    pages: Way
    """pages cached: each fetched once by a host and epoch, what spills over segments as it is"""
    ranges: Way
    """nothing cached: exact ranges, merged in each batch of a host"""
    held_pages: float
    """pages that a host holds at a time: the most; about that where segments were sampled"""
    held_bytes: float

    def over(self, way: Way) -> float:
        """Bytes downloaded, over those of the dataset in as many epochs."""
        return way.bytes / max(self.file_bytes * self.epochs, 1)

    def host_bytes(self, way: Way, hosts: int) -> float:
        """Bytes that a host downloads in an epoch, on average."""
        return way.bytes / hosts / max(self.epochs, 1e-9)


@dataclass(frozen=True)
class SourceCosts(Costs):
    """The costs of one source, and what explains them."""

    lanes: int
    chunk_bytes: int
    """0: dealt by single documents"""
    shares_pages: bool
    """whether segments share pages, so that many rows need each: see `home_bytes`"""


@dataclass(frozen=True)
class ReadCosts:
    """The costs of a run for a cluster."""

    cluster: Cluster
    steps: int
    sources: dict[str, SourceCosts]
    total: Costs
    exact: bool
    """whether every row was traced"""
    says: str
    """which rows were traced, in words"""

    def rows_a_batch(self, name: str) -> float:
        """Rows of a source in an average batch."""
        return self.sources[name].rows / self.steps
