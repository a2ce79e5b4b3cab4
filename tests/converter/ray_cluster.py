"""A Ray cluster on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a core each, which the tests of a module may kill."""
    reason = "the extra 'ray' is not installed"
    utilities = pytest.importorskip("ray.cluster_utils", reason=reason)
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    made = utilities.Cluster(
        initialize_head=True, head_node_args=node | {"include_dashboard": False}
    )
    made.add_node(**node)
    yield made
    made.shutdown()
