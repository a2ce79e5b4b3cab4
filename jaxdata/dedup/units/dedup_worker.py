"""A worker process of a search: it takes a unit, and commits what it found by a receipt."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection

from jaxdata.converter.job import Finished
from jaxdata.dedup.units.candidate_units import write_candidates
from jaxdata.dedup.units.dedup_job import (
    CandidateUnit,
    DedupJob,
    DedupUnit,
    PairUnit,
    SignatureUnit,
    SpanPart,
    SpanUnit,
)
from jaxdata.dedup.units.pair_units import compare_pairs
from jaxdata.dedup.units.signature_units import write_signatures
from jaxdata.dedup.units.span_units import hash_spans, merge_spans
from jaxdata.dedup.units.workbench import Workbench
from jaxdata.processes import Report, answer_tasks


def serve(connection: Connection, job: DedupJob) -> None:
    """Do the units that come through the connection until it closes."""
    answer_tasks(connection, worker_of(job))


def worker_of(job: DedupJob) -> Callable[[DedupUnit, Report], Finished]:
    """What does units of a job, in this process."""
    bench = Workbench(job)

    def work(unit: DedupUnit, report: Report) -> Finished:
        if isinstance(unit, SignatureUnit):
            write_signatures(bench, unit, report)
        elif isinstance(unit, CandidateUnit):
            write_candidates(bench, unit, report)
        elif isinstance(unit, PairUnit):
            compare_pairs(bench, unit, report)
        elif isinstance(unit, SpanUnit):
            hash_spans(bench, unit, report)
        elif isinstance(unit, SpanPart):
            merge_spans(bench, unit, report)
        return Finished()

    return work
