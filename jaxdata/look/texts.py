"""Texts in a dataset and a run: which documents hold them, when and how often they were trained.

They are looked for in the bytes of the documents' tokens, end to end. A document with a hit is
decoded, and counts if its text has it: none is missed, and whether a tokenizer would write a text
so today does not matter.
"""

import json
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from jaxdata.base.errors import InputError, counted
from jaxdata.base.processes import answers, available_cores
from jaxdata.base.progress import Advance, progress_bar
from jaxdata.base.ragged import AnyArray, Ints, consecutive, even_cuts
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.opening import Dataset
from jaxdata.look.document import Fields, traced_lines
from jaxdata.look.terminal import excerpt, fit, printable, table
from jaxdata.look.trace import Decode, Tracer, came_from, passage_of
from jaxdata.storage.small_files import read_lines
from jaxdata.tokenizers import Tokenizer

_TOKENS_A_TASK = 2**20
_WORTH_WORKERS = 8  # tasks
_CONTEXT = 12  # tokens shown before a match
_DETAILED = 3
"""documents: of more, only a table"""
_SHOWN = 10
_QUOTED = 40  # columns
_TRAINED = ["times", "first_step", "last_step"]
Task = tuple[str, int, int]
"""(source, first document, stop)"""
Held = tuple[int, list[int]]
"""(document, the numbers of the texts in it)"""


def read_texts(given: str) -> list[str]:
    """The texts of a file, which may be a URL: each line a JSON string, or the text itself.

    Raises:
        InputError: there is no such file, no text in it, or it is not UTF-8.
    """
    lines = read_lines(given, "the file of texts", "texts in UTF-8, one a line")
    found = [_text_of(line) for line in lines if line.strip()]
    if not found:
        raise InputError(f"{given} holds no text: expected one a line")
    return checked(found)


def _text_of(line: str) -> str:
    try:
        return str(json.loads(line)) if line.startswith('"') else line
    except ValueError:
        return line


def checked(texts: Sequence[str]) -> list[str]:
    """Different texts that can be looked for; raises InputError where one cannot."""
    for text in texts:
        if not text:
            raise InputError("the text to look for is empty: every document holds it")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"{text[:100]!r} is no Unicode text: no document holds it")
    return list(dict.fromkeys(texts))


def pieces_of(tokenizer: Tokenizer) -> list[bytes] | None:
    """The bytes of each token; None if it decodes to more than its tokens one after the other."""
    pieces = [*tokenizer.piece_bytes()]
    for silent in (tokenizer.eod_id, tokenizer.bos_id, tokenizer.pad_id):
        if silent is not None:
            pieces[silent] = b""
    whole = [k for k, piece in enumerate(pieces) if "\ufffd" not in piece.decode(errors="replace")]
    order = np.random.default_rng(0).permutation([k for k in whole if pieces[k]]).tolist()
    expected = b"".join(pieces[number] for number in order).decode()
    if tokenizer.decode(order) not in (expected, expected.removeprefix(" ")):
        return None
    # An id without bytes of its own may write some between letters, as an unknown piece does.
    letters = [number for number in order if pieces[number].isalpha()][:1]
    edge = tokenizer.decode(letters)
    for number in [k for k, piece in enumerate(pieces) if not piece]:
        try:
            text = tokenizer.decode([*letters, number, *letters])
        except InputError:  # there is no such token
            continue
        if not (text.startswith(edge) and text[len(edge) :].endswith(edge)):
            return None
        pieces[number] = text[len(edge) : len(text) - len(edge)].encode()
    return pieces


class Scanner:
    """Finds the documents that hold texts: exactly those whose decoded text has them.

    Args:
        decode: decodes token ids.
        texts: what is looked for.
        pieces: the bytes of each token; None where a tokenizer's text is more than the texts of
            its tokens: then every document is decoded.
    """

    def __init__(
        self, decode: Decode, texts: Sequence[str], pieces: Sequence[bytes] | None
    ) -> None:
        self._decode, self._texts, self._joined = decode, texts, pieces is not None
        self._data = np.frombuffer(b"".join(pieces or ()), np.uint8)
        self._sizes = np.array([*map(len, pieces or ()), 0], np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes

    def holding(self, documents: Documents, first: int, stop: int) -> list[Held]:
        """Those of `[first, stop)` that hold any text."""
        ids, counts = documents.end_to_end(np.arange(first, stop))
        ends, found = np.cumsum(counts), []
        for which, likely in sorted(self._candidates(ids, ends).items()):
            text = self._decode(ids[ends[which] - counts[which] : ends[which]])
            if texts := [number for number in likely if self._texts[number] in text]:
                found.append((first + which, texts))
        return found

    def _candidates(self, ids: AnyArray, stops: Ints) -> Mapping[int, Sequence[int]]:
        """Documents that may hold texts, and which, of those whose ids end at `stops`."""
        if not self._joined:
            return dict.fromkeys(range(len(stops)), range(len(self._texts)))
        known = np.minimum(ids, len(self._sizes) - 1)  # ids that no tokenizer has are empty
        sizes = self._sizes[known]
        data = self._data[consecutive(self._starts[known], sizes)].tobytes()
        ends = np.concatenate([[0], np.cumsum(sizes)])[stops].tolist()
        found = defaultdict[int, list[int]](list)
        for number, text in enumerate(self._texts):
            sought = text.encode()
            at = data.find(sought)
            while at >= 0:
                which = bisect_right(ends, at)
                found[which].append(number)
                at = data.find(sought, ends[which])
        return found


def find_texts(
    dataset: Dataset, sources: Mapping[str, Documents], texts: Sequence[str], progress: Advance
) -> list[tuple[str, int, list[int]]]:
    """All (source, document, numbers of the texts in it), in one pass over all tokens."""
    # Parts of characters decode to U+FFFD, whatever bytes they are.
    parts = any("\ufffd" in text for text in texts)
    pieces = None if parts else pieces_of(dataset.tokenizer)
    tasks: list[Task] = [
        (name, first, stop)
        for name, documents in sources.items()
        for first, stop, _ in even_cuts(documents.lengths, _TOKENS_A_TASK)
    ]
    total, found, seen = sum(map(len, sources.values())), list[tuple[str, int, list[int]]](), 0
    scanner = Scanner(dataset.decode, texts, pieces)

    def scan(task: Task) -> list[Held]:
        name, first, stop = task
        return scanner.holding(sources[name], first, stop)

    cores = available_cores() if len(tasks) >= _WORTH_WORKERS else 1
    held_each = answers(lambda: scan, tasks, cores)
    for (name, first, stop), held in zip(tasks, held_each, strict=True):
        found += [(name, *one) for one in held]
        seen += stop - first
        progress(seen, total)
    return found


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
    documents, steps = list[dict[str, Any]](), [list[int]() for _ in texts]
    with progress_bar("tracing documents") as progress:
        for done, (source, number, held) in enumerate(holders, 1):
            tokens = sources[source].read(number)
            places = sorted(
                (place, which)
                for which in held
                for place in locate(dataset.decode, dataset.token_bytes, tokens, texts[which])
            )
            matches: list[Any] = [{"text": which, "tokens": place} for place, which in places]
            start, trained = max(matches[0]["tokens"][0] - _CONTEXT, 0), list[int]()
            if run is None:
                passage = passage_of(sources[source], source, number, dataset.decode, start)
                documents.append(passage | {"matches": matches})
            else:
                described = run.described(source, number, start, matches)
                for match in matches:
                    new = _steps_of(described["pieces"], match["tokens"])
                    match["times"] = len(new)
                    steps[match["text"]] += new
                    trained += new
                documents.append(described | _trained(trained))
            progress(done, len(holders))
    return {
        "next_row": run and run.next_row,
        "searched": {
            "documents": sum(map(len, sources.values())),
            "tokens": sum(int(each.lengths.sum(dtype="int64")) for each in sources.values()),
        },
        "texts": [
            {"text": text, "documents": sum(number in held for *_, held in holders)}
            | (_trained(steps[number]) if run else {})
            for number, text in enumerate(texts)
        ],
        "found": len(holders),
        "documents": documents,
    }


def _trained(steps: Sequence[int]) -> dict[str, int | None]:
    """How often, and when, a run trained something: one step for each time."""
    ends = min(steps, default=None), max(steps, default=None)
    return dict(zip(_TRAINED, (len(steps), *ends), strict=True))


def _steps_of(pieces: Sequence[Mapping[str, Any]], match: tuple[int, int]) -> list[int]:
    """The step of each time that a run trained an occurrence of a text: its last token.

    That is a target with loss once an epoch, wherever windows cut the document; the first token of
    a document, which is no target, counts where it is an input.
    """
    last, steps = match[1] - 1, []
    for piece in pieces:
        first, stop = piece["tokens"]
        new = first + 1 + piece["without_loss"] if last else first
        if piece.get("trained", piece["step"] is not None) and new <= last < stop:
            steps.append(piece["step"])
    return steps


def locate(
    decode: Decode, token_bytes: AnyArray, tokens: AnyArray, text: str
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


def _by_decoding(decode: Decode, tokens: AnyArray, text: str, place: int) -> tuple[int, int]:
    """The tokens of an occurrence: the shortest prefix that has it, and what of it is needed."""
    every = range(len(tokens) + 1)
    stop = bisect_left(every, True, key=lambda n: decode(tokens[:n]).find(text, place) == place)
    start = bisect_left(every[:stop], True, key=lambda n: text not in decode(tokens[n:stop])) - 1
    return max(start, 0), stop


def text_lines(found: Fields, width: int) -> Iterator[Text | Table | str]:
    """Tables of the texts, if there are several, and of the documents; few of them in detail."""
    texts, documents = found["texts"], found["documents"][:_SHOWN]
    headings = [name.replace("_", " ") for name in _TRAINED if name in texts[0]]
    if len(texts) > 1:
        held = [text for text in texts if text["documents"]]
        yield f"{len(held):,} of {len(texts):,} texts are in documents"
        held.sort(key=lambda text: (-text.get("times", 0), -text["documents"]))
        cells = ([excerpt(each["text"]), each["documents"], *_times(each)] for each in held)
        rows = ([fit(said, _QUOTED), *more] for said, *more in islice(cells, _SHOWN))
        yield table("", ["text"], ["documents", *headings], rows)
        if len(held) > _SHOWN:
            yield f"and {len(held) - _SHOWN:,} more texts (--json has all)"
    if documents:
        yield table("", ["document", "from"], ["places", *headings], map(_row, documents))
    if found["found"] <= _DETAILED:
        yield from traced_lines(documents, width)
    if more := found["found"] - len(documents):
        yield f"and {more:,} more documents (--json has all)"
    if not documents:
        ran = "this run" if "times" in texts[0] else "this dataset"
        what = "contains the text" if len(texts) == 1 else f"contains any of {len(texts):,} texts"
        yield f"no document of {ran} {what}"
    searched = found["searched"]
    yield (
        f"searched {counted(searched['documents'], 'document')}, "
        f"{counted(searched['tokens'], 'token')}, for the text exactly as it decodes: other case, "
        "spacing or spelling was not looked for"
    )


def _row(found: Fields) -> list[object]:
    """A document's cells: its name, where it is from, with fields that were kept, its places."""
    origin = found["origin"]
    kept = [f"{printable(key)}: {excerpt(str(value))}" for key, value in origin["kept"].items()]
    came = "\n".join(each for each in (came_from(origin), *kept) if each)
    name = f"{found['source']}:{found['document']}"
    return [name, came, len(found["matches"]), *_times(found)]


def _times(found: Fields) -> list[int | None]:
    return [found[name] for name in _TRAINED if name in found]
