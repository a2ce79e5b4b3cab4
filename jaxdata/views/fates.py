"""What a view makes of one document, as plain JSON values and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxdata.documents.base import Documents
from jaxdata.documents.kept import KeptDocuments
from jaxdata.format.views import Kind, Span

DONE: Mapping[Kind, str] = {"mask": "masks", "cut": "cuts out"}
"""what a view does with ranges"""


def described_fate(documents: Documents, document: int) -> dict[str, Any]:
    """What the view through which documents are read makes of one; empty where there is none."""
    if not isinstance(documents, KeptDocuments):
        return {}
    fate = documents.view.fate(document)
    masked, cut = (documents.view.ranges_of(document, kind) for kind in DONE)
    listed = documents.numbers_of(document)
    starts = documents.view.starts[listed].tolist() if cut else [0] * len(listed)
    return {
        "view": {
            "name": documents.view.name,
            "copies": starts.count(starts[0]) if starts else 0,
            "reason": None if fate is None else fate.reason,
            "survivor": None if fate is None else fate.survivor,
            "masked": [*map(_described, masked)],
            **({"cut": [*map(_described, cut)], "pieces": len({*starts})} if cut else {}),
        }
    }


def _described(span: Span) -> dict[str, Any]:
    """A range; where its tokens stay, if that is known."""
    return {name: value for name, value in span._asdict().items() if value is not None}


def fate_lines(view: Mapping[str, Any]) -> Iterator[str]:
    """What a view makes of a document: whether it is trained, why not, and what without loss."""
    name = f"view {view['name']}"
    if not view["copies"]:
        survivor = view["survivor"]
        survives = f"; {survivor[0]}:{survivor[1]} survives" if survivor else ""
        yield f"not trained with {name}: {view['reason'] or 'not listed'}{survives}"
    elif view["copies"] > 1:
        yield f"{name} lists it {view['copies']:,} times"
    for done, ranges in zip(DONE.values(), (view["masked"], view.get("cut", [])), strict=True):
        for each in ranges:
            where = f"tokens {each['start']:,} to {each['stop'] - 1:,}"
            yield f"{name} {done} {where}: {each['reason']}{stays(each.get('first'))}"
    if view.get("pieces", 1) > 1:
        yield f"{name} makes {view['pieces']:,} documents of what is left"


def stays(first: Sequence[Any] | None) -> str:
    """Where the same tokens stay, if that is known."""
    if first is None:
        return ""
    source, document, token = first
    return f"; {source}:{document} has them" + (f" from token {token:,} on" if token >= 0 else "")
