"""Texts in a dataset and a run: which documents hold them, when and how often they were trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from jaxdata.base.errors import InputError
from jaxdata.base.progress import progress_bar
from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.look.document import Fields, traced_lines
from jaxdata.look.passages import Holder, find_texts
from jaxdata.look.terminal import excerpt, fit, printable, table
from jaxdata.look.trace import Tracer, came_from, passage_of
from jaxdata.storage.small_files import read_small

_CONTEXT = 12  # tokens shown before a match
_DETAILED = 3
"""documents: of more, only a table"""
_SHOWN = 10
_QUOTED = 40  # columns
_TRAINED = ["times", "first_step", "last_step"]


def read_texts(given: str) -> list[str]:
    """The texts of a file, which may be a URL: each line a JSON string, or the text itself.

    Raises:
        InputError: there is no such file, no text in it, or it is not UTF-8.
    """
    try:
        lines = read_small(given).decode().splitlines()
    except OSError as error:
        raise InputError(f"{given} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{given}: expected texts in UTF-8, {error}") from error
    found = [_text_of(line) for line in lines if line.strip()]
    if not found:
        raise InputError(f"{given} holds no text: expected one a line")
    return checked(found)


def _text_of(line: str) -> str:
    try:
        value = json.loads(line) if line.startswith('"') else line
    except ValueError:
        return line
    return str(value)


def checked(texts: Sequence[str]) -> list[str]:
    """Different texts that can be looked for; raises InputError where one cannot."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{text[:100]!r} is no Unicode text: no document holds it") from None
        if not text:
            raise InputError("the text to look for is empty: every document holds it")
    return list(dict.fromkeys(texts))


def describe_texts(dataset: Dataset, run: Tracer | None, texts: Sequence[str]) -> dict[str, Any]:
    """All documents that hold one of some texts, as plain JSON values.

    Args:
        dataset: what is searched: what the run reads, or all of it without a run.
        run: says in which steps; those that were trained, if it was resumed.
        texts: different texts, none of them empty.
    """
    dataset.tokenizer  # noqa: B018 - raises the error that says what is missing
    names = run.names if run else list(dataset)
    sources = {name: run.documents(name) if run else dataset[name].base for name in names}
    with progress_bar("searching documents") as progress:
        holders = find_texts(dataset, sources, texts, progress)
    documents: list[dict[str, Any]] = []
    steps, holding = [list[int]() for _ in texts], [0] * len(texts)
    with progress_bar("tracing documents") as progress:
        for done, holder in enumerate(holders):
            found = _document(dataset, sources, run, holder, texts)
            for number in holder.texts:
                holding[number] += 1
            for match in found["matches"]:
                new = match.pop("steps")
                steps[match["text"]] += new
                match |= {"times": len(new)} if run else {}
            documents.append(found)
            progress(done + 1, len(holders))
    return {
        "next_row": run and run.next_row,
        "searched": {
            "documents": sum(map(len, sources.values())),
            "tokens": sum(int(each.lengths.sum(dtype="int64")) for each in sources.values()),
        },
        "texts": [
            {"text": text, "documents": holding[number]} | (_trained(steps[number]) if run else {})
            for number, text in enumerate(texts)
        ],
        "found": len(holders),
        "documents": documents,
    }


def _document(
    dataset: Dataset,
    sources: Mapping[str, Any],
    run: Tracer | None,
    holder: Holder,
    texts: Sequence[str],
) -> dict[str, Any]:
    """A document that holds texts: their places, and when the run trained them."""
    source, number, which = holder
    documents = sources[source]
    tokens = documents.read(number)
    places = sorted(
        (place, text)
        for text in which
        for place in locate(dataset.decode, dataset.token_bytes, tokens, texts[text])
    )
    matches: list[dict[str, Any]] = [{"text": text, "tokens": place} for place, text in places]
    start = max(places[0][0][0] - _CONTEXT, 0)
    if run is None:
        found = asdict(passage_of(documents, source, number, dataset.decode, start))
        found["matches"] = matches
    else:
        found = run.described(source, number, start, matches)
    for match in matches:
        match["steps"] = _steps_of(found.get("pieces", ()), match["tokens"])
    every = [step for match in matches for step in match["steps"]]
    return found | (_trained(every) if run else {})


def _trained(steps: Sequence[int]) -> dict[str, int | None]:
    """How often, and when, a run trained something: one step for each time."""
    ends = min(steps, default=None), max(steps, default=None)
    return dict(zip(_TRAINED, (len(steps), *ends), strict=True))


def _steps_of(pieces: Sequence[Mapping[str, Any]], match: tuple[int, int]) -> list[int]:
    """The step of each time that a run trained an occurrence of a text: its last token.

    That is a target with loss once an epoch, wherever windows cut the document; the first token of
    a document, which is no target, counts where it is an input.
    """
    last = match[1] - 1
    steps = []
    for piece in pieces:
        first, stop = piece["tokens"]
        new = first + 1 + piece["without_loss"] if last else first
        begun = piece.get("trained", piece["step"] is not None)
        if begun and new <= last < stop:
            steps.append(piece["step"])
    return steps


def locate(
    decode: Callable[[Any], str], token_bytes: NDArray[Any], tokens: NDArray[Any], text: str
) -> list[tuple[int, int]]:
    """The tokens `[first, stop)` of every occurrence of a text in a document, overlapping ones too.

    Args:
        decode: decodes token ids.
        token_bytes: (ids,) bytes of each id, as `Dataset.token_bytes`.
        tokens: of the document.
        text: what is looked for.
    """
    whole = decode(tokens)
    sizes = token_bytes.take(tokens, mode="clip").astype(np.int64)
    data = whole.encode("utf-8", "surrogatepass")
    extra = int(sizes.sum()) - len(data)
    if extra not in (0, 1):  # a space that SentencePiece puts before a text
        return [_by_decoding(decode, tokens, text, place) for place in _places(whole, text)]
    ends = np.cumsum(sizes) - extra
    begins = np.array([*_places(data, text.encode())], np.int64)
    first = np.searchsorted(ends, begins, side="right")
    stop = np.searchsorted(ends, begins + len(text.encode()), side="left") + 1
    return list(zip(first.tolist(), stop.tolist(), strict=True))


def _places(whole: Any, part: Any) -> Iterator[int]:
    at = whole.find(part)
    while at >= 0:
        yield at
        at = whole.find(part, at + 1)


def _by_decoding(decode: Any, tokens: Any, text: str, place: int) -> tuple[int, int]:
    """The tokens of an occurrence, by decoding prefixes and what follows them."""
    low, high = 0, len(tokens)
    while low < high:  # the shortest prefix that contains it
        middle = (low + high) // 2
        there = decode(tokens[:middle]).find(text, place) == place
        low, high = (low, middle) if there else (middle + 1, high)
    stop, first, last = low, 0, max(low - 1, 0)
    while first < last:  # the last token from which it is complete
        middle = (first + last + 1) // 2
        first, last = (middle, last) if text in decode(tokens[middle:stop]) else (first, middle - 1)
    return first, stop


def text_lines(found: Fields, width: int) -> Iterator[Text | Table | str]:
    """Tables of the texts, if there are several, and of the documents; few of them in detail."""
    texts, documents = found["texts"], found["documents"][:_SHOWN]
    headings = [name.replace("_", " ") for name in _TRAINED if name in texts[0]]
    if len(texts) > 1:
        held = [text for text in texts if text["documents"]]
        yield f"{len(held):,} of {len(texts):,} texts are in documents"
        held.sort(key=lambda text: (-text.get("times", 0), -text["documents"]))
        rows = [(_quoted([each]), each["documents"], *_times(each)) for each in held[:_SHOWN]]
        if held:
            yield table("", ["text"], ["documents", *headings], rows)
        if len(held) > _SHOWN:
            yield f"and {len(held) - _SHOWN:,} more texts (--json has all)"
    if documents:
        left = ["document", "from", *(["texts"] if len(texts) > 1 else [])]
        yield table("", left, ["places", *headings], (_row(each, texts) for each in documents))
    if found["found"] <= _DETAILED:
        yield from traced_lines(documents, width)
    more = found["found"] - len(documents)
    if more:
        yield f"and {more:,} more documents (--json has all)"
    searched = found["searched"]
    if not found["found"]:
        ran = "this run" if "times" in texts[0] else "this dataset"
        what = "contains the text" if len(texts) == 1 else f"contains any of {len(texts):,} texts"
        yield f"no document of {ran} {what}"
    yield (
        f"searched {counted(searched['documents'], 'document')}, "
        f"{counted(searched['tokens'], 'token')}, for the text exactly as it decodes: other case, "
        "spacing or spelling was not looked for"
    )


def _row(found: Fields, texts: Sequence[Fields]) -> list[object]:
    """A document's cells: its name, where it is from, with fields that were kept, its texts."""
    origin = found["origin"]
    kept = [f"{printable(key)}: {excerpt(str(value))}" for key, value in origin["kept"].items()]
    cells = [f"{found['source']}:{found['document']}"]
    cells.append("\n".join(each for each in (came_from(origin), *kept) if each))
    if len(texts) > 1:
        cells.append(_quoted([texts[n] for n in sorted({m["text"] for m in found["matches"]})]))
    return [*cells, len(found["matches"]), *_times(found)]


def _quoted(texts: Sequence[Fields]) -> str:
    return fit("; ".join(excerpt(each["text"]) for each in texts), _QUOTED)


def _times(found: Fields) -> list[int | None]:
    return [found[name] for name in _TRAINED if name in found]
