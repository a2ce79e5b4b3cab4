"""Spans of tokens that occur before, as ranges of documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.dataset.views.source_view import NO_RANGES, TokenRanges
from jaxdata.dedup.job import KEPT, SAMPLES, WINDOWS, DedupJob, SpanPart, SpanUnit
from jaxdata.dedup.search import Search, parts_together
from jaxdata.dedup.sorted_runs import PARTS, read_part
from jaxdata.dedup.spans import Places
from jaxdata.dedup.survivors import Dropped

RECORD_BYTES = 80
"""Memory that merging takes for a record, about."""
_UNIT_TOKENS = 2**24
"""Tokens of a unit at most: all of them may be in repeated spans, of 24 bytes each."""


def repeated_spans(search: Search, dropped: Dropped) -> TokenRanges:
    """The tokens of kept documents in spans of `repeats` tokens, or more, that occur before.

    Before: in an earlier document, in the order of members and then of numbers, or earlier in the
    same one, where the two may overlap. Every such token is found, and no other: windows of so many
    tokens are equal if 128 bits of their hashes are. All tokens count, also those that begin and
    end documents. Documents are numbered across members.
    """
    if not search.job.settings.repeats:
        return NO_RANGES
    kept = np.ones(search.bench.members.total, bool)
    kept[dropped.documents] = False
    search.unfinished.note(KEPT, np.packbits(kept).tobytes())
    samples = _merged(search, SAMPLES, _hashed(search, SAMPLES))
    windows = _merged(search, WINDOWS, _hashed(search, WINDOWS, samples))
    span = search.job.settings.repeats
    return TokenRanges.join(_ranges(*part, span) for part in _parts(search, windows))


def check_no_pairs(job: DedupJob) -> None:
    """Raise InputError where documents of a source have two sides, and a part of one would go."""
    settings = job.settings
    wrong = {
        f"repeats={settings.repeats}": ("repeats=0", settings.repeats > 0),
        f"overlap_action={settings.overlap_action!r}": (
            "overlap_action='drop'",
            job.overlaps and settings.overlap_action != "drop",
        ),
    }
    for member in job.members.each:
        for setting, (remedy, holds) in wrong.items():
            if holds and len(member.sides) > 1 and not member.against:
                raise InputError(
                    f"{setting}: {member.name} has preference pairs, whose two sides begin alike; "
                    f"expected sources without: name them with --sources, or use {remedy}"
                )


def _hashed(search: Search, section: str, runs: Sequence[str] = ()) -> list[str]:
    """Do the units that hash documents of sources for a section; their names."""
    job = search.job
    cut = min(job.unit_tokens, _UNIT_TOKENS)
    lengths = [texts.lengths for texts in search.bench.texts]
    units = [
        SpanUnit(
            f"{section}-{each.member:03d}-{each.first:010d}",
            *(each.size, each.where, section, each.member, each.first, each.stop),
            tuple(runs),
        )
        for each in job.signature_units(lengths, cut)
        if not job.members.each[each.member].against
    ]
    search.do(f"hashing {section}", units)
    return [unit.name for unit in units]


def _merged(search: Search, section: str, runs: Sequence[str]) -> list[str]:
    """Do the units that merge a section of runs; their names."""
    records = sum(layout[section].records for layout in search.bench.runs(runs).values())
    step = parts_together(records * RECORD_BYTES, search.memory)
    units = [
        SpanPart(
            f"repeated-{section}-{at:03d}-{step:03d}",
            *(records * step, section, section, at, at + step),
            tuple(runs),
        )
        for at in range(0, PARTS, step)
    ]
    search.do(f"comparing {section}", units)
    return [unit.name for unit in units]


def _parts(search: Search, units: Sequence[str]) -> Iterator[tuple[Places, Places]]:
    """The places at which windows begin that occur before, ascending; and where they do first."""
    runs = search.bench.runs(units)
    step = parts_together(
        sum(layout[WINDOWS].records for layout in runs.values()) * RECORD_BYTES, search.memory
    )
    for at in range(0, PARTS, step):
        (places, earliest), _ = read_part(search.bench.store, runs, WINDOWS, at, at + step)
        order = np.argsort(places)
        yield places[order], earliest[order]


def _ranges(places: Places, earliest: Places, span: int) -> TokenRanges:
    """Windows of `span` tokens as ranges; those that meet are one, and stay where its first does.

    Documents are numbered across members, also where ranges stay.
    """
    apart = np.append(True, np.diff(places) > span)[: len(places)]
    (document, start), (_, last) = map(
        _document_and_token, (places[apart], places[np.append(apart[1:], True)[: len(places)]])
    )
    first = np.column_stack([np.zeros_like(start), *_document_and_token(earliest[apart])])
    return TokenRanges.of(document, start, last + span, first=first)


def _document_and_token(places: Places) -> tuple[Ints, Ints]:
    return (places >> np.uint64(32)).astype(np.int64), places.astype(np.uint32).astype(np.int64)
