"""`jaxdata.convert`: a conversion and, with `dedup=`, the view without the copies it met."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from jaxdata.base.hashing import ExactRule
from jaxdata.converter.compatibility import call_text
from jaxdata.converter.conversion import convert as convert_alone
from jaxdata.converter.engines import EngineName
from jaxdata.converter.hashes import RULE, VIEW, rule_of
from jaxdata.converter.statistics import ConversionReport
from jaxdata.dedup.api import deduplicate
from jaxdata.dedup.search import Stage

F = TypeVar("F", bound=Callable[..., Any])
_HOW = ("workers", "engine", "ray_address")


def takes_dedup(door: F) -> F:
    """Let `convert` take `dedup`: it keeps the hashes of a rule, from which the view is made."""

    @functools.wraps(door)
    def opened(*given: Any, dedup: str | None = None, **named: Any) -> Any:
        if dedup is None:
            return door(*given, **named)
        rule = rule_of(dedup)
        call = {**dict(zip(["inputs"], given, strict=False)), **named, "dedup": dedup}
        said = {"command": call_text(door, call)} | named
        report = door(*given, exact_hash=rule, **said)
        return leave_out_copies(
            report, rule, **{name: named[name] for name in _HOW if name in named}
        )

    return opened  # type: ignore[return-value]


def leave_out_copies(
    report: ConversionReport,
    rule: ExactRule,
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    ray_address: str | None = None,
    stage: Stage | None = None,
) -> ConversionReport:
    """Make the view of what a conversion wrote that leaves out exact copies; no text is read.

    With several splits it is a view of the first one, without copies of documents of the others.

    Args:
        report: of a conversion that kept the hashes of this rule.
        rule: what may differ between copies.
        workers: as for `convert`.
        engine: as for `convert`.
        ray_address: as for `convert`.
        stage: shows progress, as for `deduplicate`.
    """
    split = report.source.partition("/")[0]
    own = [name for name in report.sources if name.startswith(f"{split}/")] or report.sources[:1]
    found = deduplicate(
        report.output,
        VIEW,
        sources=own,
        split=own[0].partition("/")[0],
        against=[name for name in report.sources if name not in own],
        exact=None if rule == RULE else rule,
        near=False,
        workers=workers,
        engine=engine,
        ray_address=ray_address,
        stage=stage,
    )
    return replace(report, views=found.views)


convert = takes_dedup(convert_alone)
