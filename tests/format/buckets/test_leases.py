"""Leases in buckets, where an answer may get lost."""

from __future__ import annotations

from jaxdata.format.lease import leased
from jaxdata.format.storage import open_store
from jaxdata.testing.buckets import BucketServer, Faults


def test_a_lease_is_taken_also_when_nobody_answers_that_it_is(server: BucketServer) -> None:
    """The client tries again, and is refused: what it expects there was before its own writing."""
    for seed in range(8):
        server.faults = Faults(lost=0.5, path="*/.lease", methods="POST PUT", seed=seed)
        store = open_store(server.url(f"bkt/ds{seed}"))
        with leased(store, ["train/web"]) as lease:
            lease.check(store)
            server.faults = ()
    assert server.counts.faults["lost"] > 1
    assert server.names() == [], "they were released"
