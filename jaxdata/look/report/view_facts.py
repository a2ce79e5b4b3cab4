"""Views of a dataset: what each keeps and drops of a source, and some copies beside what stays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from jaxdata.base.errors import JaxdataError
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.manifest import ViewAccount
from jaxdata.dataset.opening import open_dataset
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dedup.examples import Example, SpanExample, examples_of_source

_EXAMPLES = 2  # of each reason; each reads two documents and compares their words
_FAR_EXAMPLES = 1
_MOST_EXAMPLES = 8  # of a view of a source
_ALL_EXAMPLES = 24


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
    examples: list[Example]
    spans: list[SpanExample]


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
    examples, spans = list[Example](), list[SpanExample]()
    try:
        if fits:  # its own dataset: there survivors have the names that the view knows
            own, of_each = open_dataset(base.store.url), _FAR_EXAMPLES if base.is_far else _EXAMPLES
            for each in islice(examples_of_source(own, base.name, view, of_each), most):
                if isinstance(each, Example):
                    examples.append(each)
                else:
                    spans.append(each)
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
