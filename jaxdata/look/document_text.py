"""One document of a dataset, decoded; text without loss is marked."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.text import Text

from jaxdata.documents.base import side_arrays
from jaxdata.documents.dataset import Dataset
from jaxdata.errors import InputError
from jaxdata.look.origins import origin_of
from jaxdata.look.terminal import printable
from jaxdata.ragged import equal_runs

_MOST_CHARACTERS = 4_000
_NO_LOSS = ("⟦", "⟧")


def describe_document(dataset: Dataset, split: str, source: str, number: int) -> dict[str, Any]:
    """A document as plain JSON values: tokens, text, origin, loss."""
    documents = dataset.source(split, source)
    if not 0 <= number < len(documents):
        raise InputError(
            f"no document {number} in {split}/{source}: it has 0 to {len(documents) - 1}"
        )
    item = documents[number]
    tokens = np.asarray(item["tokens"])
    loss = np.asarray(item.get("loss_mask", np.ones(len(tokens), bool)))
    side = {name: item[name].tolist() for name in side_arrays(documents)}
    return {
        "source": f"{split}/{source}",
        "document": number,
        "length": len(tokens),
        "origin": vars(origin_of(documents, number)),
        "tokens": tokens.tolist(),
        "masked": documents.masked,
        "tokens_with_loss": int(np.count_nonzero(loss[1:])),
        "parts": [
            {
                "loss": bool(loss[first]),
                "tokens": stop - first,
                "text": dataset.decode(tokens[first:stop]),
            }
            for first, stop in equal_runs(loss)
        ],
        **({"side": side} if side else {}),
    }


def document_text(described: dict[str, Any]) -> Text:
    """Its text, at most 4,000 characters; text without loss is in brackets."""
    shown, left = Text(), _MOST_CHARACTERS
    for part in described["parts"]:
        text = part["text"][:left]
        left -= len(text)
        visible = "\n".join(printable(line) for line in text.split("\n"))
        if part["loss"]:
            shown.append(visible)
        elif visible:
            shown.append(visible.join(_NO_LOSS), "dim")
    rest = sum(len(part["text"]) for part in described["parts"]) - _MOST_CHARACTERS
    if rest > 0:
        shown.append(f"\n… {rest:,} more characters (use --json)", "dim")
    return shown
