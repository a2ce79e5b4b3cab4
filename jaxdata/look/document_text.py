"""One document of a dataset, decoded; text without loss, and special tokens, are marked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from jaxdata.converter.chat.template_text import texts_like_tokens
from jaxdata.documents.base import side_arrays
from jaxdata.documents.dataset import Dataset
from jaxdata.documents.kept import base_of
from jaxdata.errors import InputError
from jaxdata.look.origins import origin_of
from jaxdata.look.terminal import printable
from jaxdata.ragged import equal_runs
from jaxdata.views.fates import described_fate

_MOST_CHARACTERS = 4_000
_NO_LOSS = ("⟦", "⟧")
_SPECIAL = ("⟪", "⟫")


def describe_document(dataset: Dataset, split: str, source: str, number: int) -> dict[str, Any]:
    """A document as plain JSON values: tokens, text, origin, loss."""
    read = dataset.source(split, source)
    documents: Any = base_of(read)
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
        **described_fate(read, number),
        "tokens_with_loss": int(np.count_nonzero(loss[1:])),
        "parts": [
            {
                "loss": bool(loss[first]),
                "tokens": stop - first,
                "text": dataset.decode(tokens[first:stop]),
                "pieces": list(_pieces(dataset, tokens[first:stop])),
            }
            for first, stop in equal_runs(loss)
        ],
        **({"side": side} if side else {}),
    }


def _pieces(dataset: Dataset, tokens: NDArray[Any]) -> Iterator[dict[str, Any]]:
    """Text and special tokens of a run of tokens, in order; tokens without a text are left out."""
    texts = {i: text for text, i in dataset.tokenizer.special_tokens.items()}
    at = np.flatnonzero(np.isin(tokens, list(texts)))
    for run, special in zip(np.split(tokens, at), [None, *tokens[at].tolist()], strict=True):
        if special is not None:
            yield {"text": texts[special], "special": True}
        if text := dataset.decode(run[special is not None :]):
            yield {"text": text, "special": False}


def document_text(described: dict[str, Any]) -> Text:
    """Its text, at most 4,000 characters.

    Text without loss is in brackets. So are special tokens, in others: text that only looks like
    one ("<|im_start|>" in six pieces) is not.
    """
    shown, left = Text(), _MOST_CHARACTERS
    for part in described["parts"]:
        inner = Text()
        for piece in part["pieces"]:
            text = piece["text"][:left]
            left -= len(text)
            visible = "\n".join(printable(line) for line in text.split("\n"))
            if piece["special"] and visible:
                inner.append(visible.join(_SPECIAL), "bold cyan")
            else:
                inner.append(visible, "" if part["loss"] else "dim")
        if inner and not part["loss"]:
            inner = Text.assemble((_NO_LOSS[0], "dim"), inner, (_NO_LOSS[1], "dim"))
        shown.append_text(inner)
    size = sum(len(piece["text"]) for part in described["parts"] for piece in part["pieces"])
    if size > _MOST_CHARACTERS:
        rest = size - _MOST_CHARACTERS
        shown.append(f"\n… {rest:,} more characters (use --json)", "dim")
    if found := _look_special(described):
        shown.append(f"\ntext, and no special tokens: {printable(', '.join(found))}", "dim")
    return shown


def _look_special(described: dict[str, Any]) -> list[str]:
    """What looks like special tokens, and is text."""
    pieces = (piece for part in described["parts"] for piece in part["pieces"])
    return texts_like_tokens("\n".join(each["text"] for each in pieces if not each["special"]))
