"""Writing and removing views: columns first, the manifest last, under the leases of their sources.

The folder of the columns bears the digest of their content. So whatever made a view, and however
often it was killed, its bytes are the same; and one that is made again leaves alone what runs read
until the manifest names the new one.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError, InputError, digest
from jaxdata.base.ragged import AnyArray
from jaxdata.dataset import manifest
from jaxdata.dataset.index import SourceIndex, checksum, write_columns
from jaxdata.dataset.lease import clear, leased
from jaxdata.dataset.views.kept_documents import column_types, view_fingerprint, view_folder
from jaxdata.dataset.views.source_view import SourceView, account_of, of_both_sides, pieces, settled
from jaxdata.storage import Store, open_store

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}", re.ASCII)
_SIDES = ("/chosen", "/rejected")


def write_views(
    dataset: str | os.PathLike[str] | Store,
    name: str,
    views: Mapping[str, SourceView],
    *,
    parameters: Mapping[str, Any],
    made_of: Mapping[str, str],
) -> dict[str, manifest.ViewEntry]:
    """Publish a view of some sources; one of the same name is replaced.

    If one source is a side of preference pairs, the other side gets the same list.

    Args:
        dataset: a folder or URL.
        name: of the view.
        views: `"<split>/<source>"` -> what it makes of it.
        parameters: what it was made with, which the manifest keeps: plain JSON values.
        made_of: the fingerprint of each source when it was read.

    Returns:
        The entries in the manifest, by source.

    Raises:
        InputError: the name cannot be one of a folder.
        DatasetError: a source is missing, being written, or was appended to since it was read.
    """
    check_name(name)
    store = open_store(dataset) if isinstance(dataset, str | os.PathLike) else dataset
    views = dict(_both_sides(views, manifest.read_manifest(store)))
    entries: dict[str, manifest.ViewEntry] = {}
    with leased(store, views) as lease:
        at = lease.fenced(store)
        whole = manifest.read_manifest(at)
        for source, view in views.items():
            known = whole.sources.get(source)
            same = known is not None and made_of.get(source) in (None, known.fingerprint)
            if known is None or not same or known.documents != view.documents:
                raise DatasetError(
                    f"{at.url}: {source} was changed while a view of {view.documents:,} documents "
                    "of it was made; run the same command again"
                )
            lengths = SourceIndex(at, source, known, whole.record_spec(source)).lengths
            columns, entries[source] = _made(known, lengths, view, dict(parameters))
            if known.views.get(name) != entries[source]:
                folder = f"{view_folder(source, name)}/{entries[source].folder}"
                write_columns(at, folder, columns)
        _update(at, name, entries)
        for source, entry in entries.items():
            _remove_columns(at, source, name, kept=entry.folder)
    return entries


def remove_views(
    dataset: str | os.PathLike[str], name: str, sources: Sequence[str] | None = None
) -> list[str]:
    """Remove a view from some sources (`"<split>/<source>"`; None for all), with its columns.

    Returns:
        The sources that had it.

    Raises:
        InputError: none of them has a view of this name.
    """
    check_name(name)
    store = open_store(dataset)
    known = {source: entry.views for source, entry in manifest.read_manifest(store).sources.items()}
    having = [
        each
        for each in known
        if each in (sources or known)
        and (name in known[each] or store.list(f"{view_folder(each, name)}/"))  # killed on the way
    ]
    if not having:
        clear(store, known)  # of a process that was killed when it had removed the view
        views = [f"{view} (of {source})" for source, each in known.items() for view in each]
        of = f" of {', '.join(sources)}" if sources else ""
        raise InputError(
            f"{store.url} has no view {name!r}{of}: it has {', '.join(views) or 'none'}"
        )
    with leased(store, having) as lease:
        at = lease.fenced(store)
        _update(at, name, dict.fromkeys(having))
        for source in having:
            _remove_columns(at, source, name)
    return having


def check_name(name: str) -> None:
    """Raise InputError unless a view can have this name, which is that of a folder."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"a view cannot be named {name!r}: expected letters, digits, '.', '_', '-' or '+', the "
            "first a letter or a digit, like d1"
        )


def _both_sides(
    views: Mapping[str, SourceView], whole: manifest.Manifest
) -> Iterator[tuple[str, SourceView]]:
    """The views, with one list for both sides of preference pairs."""
    others = (other_side(name, whole) for name in views)
    for name in dict.fromkeys([*views, *filter(None, others)]):
        other = other_side(name, whole)
        if other is None:
            yield name, views[name]
            continue
        nothing = SourceView(documents=whole.sources[name].documents)
        view, theirs = (views.get(each, nothing) for each in (name, other))
        if len(view.cut.document) or len(theirs.cut.document):
            raise InputError(
                f"{name} is a side of preference pairs, from which nothing can be cut: mask these "
                "ranges"
            )
        yield name, of_both_sides(view, theirs)


def other_side(name: str, whole: manifest.Manifest) -> str | None:
    """The source with the other side of the same preference pairs."""
    for side, other in (_SIDES, _SIDES[::-1]):
        pair = name.removesuffix(side) + other
        if name.endswith(side) and pair in whole.sources:
            same = whole.sources[pair].documents == whole.sources[name].documents
            return pair if same else None
    return None


def _made(
    source: manifest.SourceEntry, lengths: AnyArray, view: SourceView, parameters: dict[str, Any]
) -> tuple[dict[str, AnyArray], manifest.ViewEntry]:
    """The columns of a view, and its entry."""
    view = settled(view, lengths)
    columns = _columns(lengths, view)
    sums = {name: checksum(column) for name, column in columns.items()}
    tokens = int(columns["length"].sum(dtype=np.int64))
    listed = manifest.Amount(documents=len(columns["document"]), tokens=tokens)
    entry = manifest.ViewEntry(
        generation=source.fingerprint,
        documents=listed.documents,
        tokens=tokens,
        fingerprint=view_fingerprint(source.fingerprint, sums),
        folder=digest([sums, columns["document"].dtype.name])[:16],
        reasons=list(view.reasons),
        survivors=list(view.survivors),
        checksums=sums,
        parameters=parameters,
        account=account_of(lengths, view, listed, masked=source.masked),
    )
    return columns, entry


def _columns(lengths: AnyArray, view: SourceView) -> dict[str, AnyArray]:
    """The columns of a view that is settled, as `ViewIndex` reads them."""
    document = view.listed()
    given: dict[str, AnyArray] = {"document": document, "length": lengths[document]}
    if len(view.cut.document):  # pieces; where a document is listed again, so is each of its own
        own, times = np.unique(document, return_counts=True)
        left = pieces(own, lengths, view.cut)
        copies = times[np.searchsorted(own, left.document)]
        left = left.take(np.arange(len(copies)).repeat(copies))
        given = {"document": left.document, "length": left.stop - left.start, "start": left.start}
    given |= {"dropped": view.dropped, "reason": view.reason}
    if (view.survivor_source >= 0).any():
        given |= {"survivor_source": view.survivor_source, "survivor": view.survivor}
    for kind, ranges in (("mask", view.masked), ("cut", view.cut)):
        if len(ranges.document):
            given |= {f"{kind}_{name}": each for name, each in ranges._asdict().items()}
    types = column_types(view.documents)
    return {name: column.astype(types[name]) for name, column in given.items()}


def _update(store: Store, name: str, entries: Mapping[str, manifest.ViewEntry | None]) -> None:
    """Put the entries of a view into the manifest; remove it from it where they are None."""

    def changed(sources: Mapping[str, manifest.SourceEntry]) -> dict[str, manifest.SourceEntry]:
        found: dict[str, manifest.SourceEntry] = {}
        for source, entry in entries.items():
            views = {each: view for each, view in sources[source].views.items() if each != name}
            views |= {name: entry} if entry else {}
            update = {"views": dict(sorted(views.items()))}
            found[source] = sources[source].model_copy(update=update)
        return found

    manifest.update_sources(store, changed)


def _remove_columns(store: Store, source: str, name: str, kept: str = "") -> None:
    """Remove the columns of views of a name, but those in the folder `kept`."""
    start = f"{view_folder(source, name)}/"
    folders = {file.removeprefix(start).partition("/")[0] for file in store.list(start)}
    for folder in sorted(folders - {kept}):
        store.delete(f"{start}{folder}/")
