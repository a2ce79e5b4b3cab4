"""Texts in a dataset and a run: which documents hold them, when and how often they were trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from jaxdata.base.progress import progress_bar
from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.documents import Documents
from jaxdata.look.passages import Holder, Trained, find_texts, locate, steps_of
from jaxdata.look.terminal import excerpt, fit, plain_table, printable
from jaxdata.look.trace import Explanation, Fields, came_from, document_lines, passage_of

_CONTEXT = 12  # tokens shown before a match
_DETAILED = 3
"""documents: of more, only a table"""
_SHOWN = 10
_QUOTED = 40  # columns


def describe_texts(
    dataset: Dataset, run: Explanation | None, texts: Sequence[str], limit: int | None
) -> dict[str, Any]:
    """All documents that hold one of some texts, as plain JSON values.

    Args:
        dataset: what is searched: what the run reads, or all of it without a run.
        run: says in which steps; those that were trained, if it was resumed.
        texts: different texts, none of them empty.
        limit: documents that are listed; all are counted. None for all.
    """
    dataset.tokenizer  # noqa: B018 - raises the error that says what is missing
    sources = {name: dataset[name].base for name in dataset} if run is None else run.sources
    with progress_bar("searching documents") as progress:
        holders = find_texts(dataset, sources, texts, progress)
    documents: list[dict[str, Any]] = []
    steps, holding = [list[int]() for _ in texts], [0] * len(texts)
    with progress_bar("tracing documents") as progress:
        for done, holder in enumerate(holders):
            found = _document(dataset, sources[holder.source], run, holder, texts)
            for number in holder.texts:
                holding[number] += 1
            for match in found["matches"]:
                new = steps_of(found.get("pieces", ()), match["tokens"])
                steps[match["text"]] += new
                match |= {"times": len(new)} if run else {}
            if limit is None or done < limit:
                documents.append(found)
            progress(done + 1, len(holders))
    return {
        "next_row": run and run.next_row,
        "searched": {
            "documents": sum(map(len, sources.values())),
            "tokens": sum(int(each.lengths.sum(dtype="int64")) for each in sources.values()),
        },
        "texts": [
            {"text": text, "documents": holding[number]}
            | (Trained.of(steps[number])._asdict() if run else {})
            for number, text in enumerate(texts)
        ],
        "found": len(holders),
        "documents": documents,
    }


def _document(
    dataset: Dataset,
    documents: Documents,
    run: Explanation | None,
    holder: Holder,
    texts: Sequence[str],
) -> dict[str, Any]:
    """A document that holds texts: their places, and when the run trained them."""
    source, number, which = holder
    tokens = documents.read(number)
    places = sorted(
        (place, text)
        for text in which
        for place in locate(dataset.decode, dataset.token_bytes, tokens, texts[text])
    )
    matches = [{"text": text, "tokens": place} for place, text in places]
    start = max(places[0][0][0] - _CONTEXT, 0)
    if run is None:
        passage = passage_of(documents, source, number, dataset.decode, start)
        return asdict(passage) | {"matches": matches}
    found = run.document(source, number, start, matches)
    steps = [step for place, _ in places for step in steps_of(found["pieces"], place)]
    return found | Trained.of(steps)._asdict()


def text_lines(found: Fields, width: int, limit: int | None) -> Iterator[Text | Table | str]:
    """Tables of the texts, if there are several, and of the documents; few of them in detail."""
    texts, documents = found["texts"], found["documents"][: limit or _SHOWN]
    if len(texts) > 1:
        yield from _texts(texts, limit or _SHOWN)
    if documents:
        yield _documents(documents, texts)
    if found["found"] <= _DETAILED:
        yield from document_lines(documents, width)
    more = found["found"] - len(documents)
    if more:
        yield f"and {more:,} more documents (--limit shows them, --json has all)"
    searched = found["searched"]
    amount = f"{counted(searched['documents'], 'document')}, {counted(searched['tokens'], 'token')}"
    if not found["found"]:
        ran = "this run" if "times" in texts[0] else "this dataset"
        what = "contains the text" if len(texts) == 1 else f"contains any of {len(texts):,} texts"
        yield f"no document of {ran} {what}"
    yield (
        f"searched {amount}, for the text exactly as it decodes: other case, spacing or spelling "
        "was not looked for"
    )


def _texts(texts: Sequence[Fields], limit: int) -> Iterator[Table | str]:
    held = [text for text in texts if text["documents"]]
    yield f"{len(held):,} of {len(texts):,} texts are in documents"
    held.sort(key=lambda text: (-text.get("times", 0), -text["documents"]))
    if held:
        right = ["documents", *_TRAINED] if "times" in held[0] else ["documents"]
        table = plain_table("", ["text"], right)
        for text in held[:limit]:
            quoted = fit(excerpt(text["text"]), _QUOTED)
            table.add_row(Text(quoted), f"{text['documents']:,}", *_trained(text))
        yield table
    if len(held) > limit:
        yield f"and {len(held) - limit:,} more texts (--limit shows them, --json has all)"


_TRAINED = ["times", "first step", "last step"]


def _documents(documents: Sequence[Fields], texts: Sequence[Any]) -> Table:
    in_run = "times" in documents[0]
    left = ["document", "from", *(["texts"] if len(texts) > 1 else [])]
    table = plain_table("", left, ["places", *(_TRAINED if in_run else [])])
    for found in documents:
        held = sorted({match["text"] for match in found["matches"]})
        shown = [excerpt(texts[number]["text"]) for number in held]
        cells = [f"{printable(found['source'])}:{found['document']}", _origin(found["origin"])]
        if len(texts) > 1:
            cells.append(fit("; ".join(shown), _QUOTED))
        table.add_row(*map(Text, cells), f"{len(found['matches']):,}", *_trained(found))
    return table


def _origin(origin: Mapping[str, Any]) -> str:
    kept = [f"{printable(key)}: {excerpt(str(value))}" for key, value in origin["kept"].items()]
    return "\n".join(each for each in (came_from(origin), *kept) if each)


def _trained(found: Fields) -> list[str]:
    if "times" not in found:
        return []
    steps = (found["first_step"], found["last_step"])
    return [f"{found['times']:,}", *("" if step is None else f"{step:,}" for step in steps)]
