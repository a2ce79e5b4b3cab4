"""What a view makes of one document, as plain JSON values and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxdata.documents.base import Documents
from jaxdata.documents.kept import KeptDocuments


def described_fate(documents: Documents, document: int) -> dict[str, Any]:
    """What the view through which documents are read makes of one; empty where there is none."""
    if not isinstance(documents, KeptDocuments):
        return {}
    fate = documents.view.fate(document)
    ranges = documents.view.ranges_of(document)
    return {
        "view": {
            "name": documents.view.name,
            "copies": len(documents.numbers_of(document)),
            "reason": None if fate is None else fate.reason,
            "survivor": None if fate is None else fate.survivor,
            "masked": [each._asdict() for each in ranges],
        }
    }


def fate_lines(view: Mapping[str, Any]) -> Iterator[str]:
    """What a view makes of a document: whether it is trained, why not, and what without loss."""
    name = f"view {view['name']}"
    if not view["copies"]:
        survivor = view["survivor"]
        survives = f"; {survivor[0]}:{survivor[1]} survives" if survivor else ""
        yield f"not trained with {name}: {view['reason'] or 'not listed'}{survives}"
    elif view["copies"] > 1:
        yield f"{name} lists it {view['copies']:,} times"
    for each in view["masked"]:
        yield f"{name} masks tokens {each['start']:,} to {each['stop'] - 1:,}: {each['reason']}"
