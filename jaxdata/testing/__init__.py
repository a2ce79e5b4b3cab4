"""Checks of a run on its own data, and small datasets to run them on.

jaxdata's own tests use them, and tests of your pipeline can; `jaxdata verify CONFIG`
makes the same proofs of a config.

    from jaxdata import testing

    def test_my_rows():
        make = lambda: jaxdata.load("my.yaml", loader={"batch_size": 8})
        testing.assert_resumes_everywhere(make, steps=10)
        testing.assert_rows_conserve(make().rows)

Others measure how well rows are shuffled and what a trainer does with batches.
"""

from jaxdata.base.lazy import resolver
from jaxdata.testing.datasets import distinct_documents, write_dataset
from jaxdata.testing.proofs import (
    Proof,
    assert_batches_hold_documents,
    assert_exactly_once,
    assert_resumes_everywhere,
    assert_rows_conserve,
    assert_same_batches,
    assert_same_on_hosts,
    prove,
)
from jaxdata.testing.shuffle import ShuffleQuality, shuffle_quality
from jaxdata.testing.trainer_check import check_trainer, trainer_proofs

__getattr__ = resolver(__name__)
__all__ = [
    "Proof",
    "ShuffleQuality",
    "assert_batches_hold_documents",
    "assert_exactly_once",
    "assert_resumes_everywhere",
    "assert_rows_conserve",
    "assert_same_batches",
    "assert_same_on_hosts",
    "check_trainer",
    "distinct_documents",
    "prove",
    "shuffle_quality",
    "trainer_proofs",
    "write_dataset",
]
