"""Views of a dataset: what each keeps and drops of a source, and some copies beside what stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from jaxdata.base.errors import JaxdataError
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.manifest import ViewAccount
from jaxdata.dataset.opening import open_dataset
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dedup.examples import Example, brief, examples_of_source, spans_of_source
from jaxdata.look.terminal import printable

_EXAMPLES = 2  # of each reason; each reads two documents and compares their words
_FAR_EXAMPLES = 1
_MOST_EXAMPLES = 8  # of a view of a source
_ALL_EXAMPLES = 24
_PASSAGES = 40
_CHARACTERS = 400  # of a passage


@dataclass(frozen=True)
class ShownCopy:
    """A document that is left out, beside the one that stays; all printable."""

    copy: str
    survivor: str
    reason: str
    copies: int
    """documents of the source that are left out for the same survivor"""
    passages: list[tuple[str, str, str]] | None
    """("same", text, "") or ("other", what stays, the copy); None: the survivor is in a file"""
    cut: bool


@dataclass(frozen=True)
class ShownSpan:
    """A span that is masked or cut out; all printable."""

    said: list[str]
    """what becomes of the span, how often it occurs, and where it stays"""
    text: str


@dataclass(frozen=True)
class ViewFacts:
    """One view of one source."""

    source: str
    view: str
    account: ViewAccount
    masked_tokens: int
    clusters: dict[str, int]
    """by the number of documents, how many; empty if no copies were looked for"""
    state: str
    """whether this run reads it, or nobody can"""
    examples: list[ShownCopy]
    spans: list[ShownSpan]


def view_facts(dataset: Dataset, told: list[str]) -> list[ViewFacts]:
    """All views of all sources; why there are no examples of one is added to `told`."""
    found, left = list[ViewFacts](), _ALL_EXAMPLES
    for name in sorted(dataset.names):
        read = dataset[name]
        base = read.base
        if not isinstance(base, ConvertedDocuments):
            continue
        used = read.view.name if isinstance(read, KeptDocuments) else None
        for view in base.entry.views:
            facts = _facts(name, base, view, used, min(left, _MOST_EXAMPLES), told)
            left -= len(facts.examples) + len(facts.spans)
            found.append(facts)
    return found


def _facts(
    name: str, base: ConvertedDocuments, view: str, used: str | None, most: int, told: list[str]
) -> ViewFacts:
    entry = base.entry.views[view]
    fits = entry.generation == base.entry.fingerprint
    examples, spans = list[ShownCopy](), list[ShownSpan]()
    try:
        examples = list(islice(_examples(base, view), most)) if fits else []
        spans = list(islice(_spans(base, view), most - len(examples))) if fits else []
    except JaxdataError as error:
        told.append(f"copies of view {view} of {name} cannot be shown: {error}")
    return ViewFacts(
        source=name,
        view=view,
        account=entry.account,
        masked_tokens=sum(each.tokens for each in entry.account.masked.values()),
        clusters=entry.statistics.get("clusters", {}),
        state=("read here" if view == used else "") if fits else "of an earlier generation",
        examples=examples,
        spans=spans,
    )


def _examples(base: ConvertedDocuments, view: str) -> Iterator[ShownCopy]:
    """In the source's own dataset: there its survivors have the names that the view knows."""
    most = _FAR_EXAMPLES if base.is_far else _EXAMPLES
    own = open_dataset(base.store.url)
    yield from map(_shown, examples_of_source(own, base.name, view, most))


def _spans(base: ConvertedDocuments, view: str) -> Iterator[ShownSpan]:
    most = _FAR_EXAMPLES if base.is_far else _EXAMPLES
    for each in spans_of_source(open_dataset(base.store.url), base.name, view, most):
        *said, _ = map(printable, each.lines())
        yield ShownSpan([line.strip() for line in said], printable(each.text[:_CHARACTERS]))


def _shown(example: Example) -> ShownCopy:
    copy, survivor = (
        printable(f"{name}:{number}") for name, number in (example.copy, example.survivor)
    )
    passages, cut = None, False
    if example.passages is not None:
        cut = len(example.passages) > _PASSAGES
        passages = [
            (kind, _short(one), _short(other)) for kind, one, other in example.passages[:_PASSAGES]
        ]
    reason = printable(example.reason)
    return ShownCopy(copy, survivor, reason, example.copies, passages, cut)


def _short(text: str) -> str:
    return printable(brief(text)[:_CHARACTERS])
