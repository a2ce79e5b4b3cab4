"""Whether what is held out may be trained, too: by the views that are read."""

from collections.abc import Iterator, Sequence
from typing import Any

from jaxdata.dataset.opening import Dataset
from jaxdata.dataset.views.kept_documents import KeptDocuments


def leak_notes(dataset: Dataset, trained: Sequence[str], held_out: Sequence[str]) -> list[str]:
    """A line on the sources that were compared with those held out, and one on the others.

    Names are `"<split>/<source>"`. Nothing is read but the manifest: a view of `jaxdata dedup`
    knows the fingerprints of what it was made against, also beneath views that were made of it.
    """
    prints = {dataset[name].fingerprint: name for name in held_out}
    compared: dict[str, list[str]] = {}
    for name in trained:
        known = {*_compared(dataset[name])}
        lacking = ", ".join(sorted(prints[each] for each in prints.keys() - known))
        compared.setdefault(lacking, []).append(name)
    notes = []
    for lacking, names in sorted(compared.items()):
        note = f"copies of {', '.join(held_out)} are left out, by its view"
        if lacking:
            note = (
                f"never compared with {lacking}, so copies of it may be trained. To leave them "
                f"out: jaxdata dedup DATASET --against {lacking.partition('/')[0]} --output-name "
                "d1, then documents: d1"
            )
        notes.append(f"{', '.join(names)}: {note}")
    return notes


def _compared(docs: Any) -> Iterator[str]:
    """The fingerprints of the sources that documents were compared with.

    By the search that made the view that they are read through, or a view below that.
    """
    if not isinstance(docs, KeptDocuments):
        return
    views: dict[str, Any] = docs.base.entry.views if docs.base.entry else {}
    view, passed = views.get(docs.view.name), set[str]()
    while view is not None:
        made = view.parameters
        for name in made.get("against", []) if made.get("command") == "dedup" else ():
            yield from made.get("sides", {}).get(name, [])
        below = made.get("documents")
        view = None if below in passed else views.get(below)
        passed.add(str(below))
