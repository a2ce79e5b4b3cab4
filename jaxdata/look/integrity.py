"""Checks that a dataset, its index and its shards are intact and agree, in seconds at any size.

Reads the index and the end of each shard; `jaxdata verify` reads everything, and `not_compared`
says what that is.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxdata.base.errors import DatasetError
from jaxdata.base.wording import counted
from jaxdata.dataset.contract import Dataset
from jaxdata.dataset.converted import ConvertedDocuments
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import read_manifest
from jaxdata.dataset.verify import damage_of_columns, file_check, run_checks
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.testing.proofs import Proof


def check_dataset(dataset: Dataset, names: Sequence[str]) -> Iterator[Proof]:
    """Check the tokenizers, and the index, shards and views of the sources `names`.

    Opening the dataset checked the manifests. Sources of other tools have no checksums: nothing is
    compared for them.
    """
    opened = [dataset[name] for name in names]
    ours = [each.base for each in opened if isinstance(each.base, ConvertedDocuments)]
    views = [each.view for each in opened if isinstance(each, KeptDocuments)]
    stores = {each.store.url: each.store for each in ours}
    tokenizer = [
        file_check(store, *each)
        for store in stores.values()
        for each in read_manifest(store).tokenizer.checksums.items()
    ]
    index = [damage for each in ours for damage in damage_of_columns(each.index)]
    lists = [damage for view in views for damage in damage_of_columns(view)]
    parts = [part for each in ours for part in (each.index, *each.index.sides.values())]
    shards = [] if index else [wrong for part in parts for wrong in _wrong_shards(part)]
    files, documents = sum(len(each.entry.all_shards) for each in ours), sum(map(len, ours))
    yield Proof("manifest", True, counted(len(stores), "dataset"))
    for name, damage, fine in (
        ("tokenizer", run_checks(tokenizer), "its files are unchanged"),
        ("index", index, f"{documents:,} documents of {counted(len(ours), 'source')}"),
        ("shards", shards, f"{counted(files, 'file')}: each is whole"),
        ("views", lists, f"{counted(len(views), 'list')} of kept documents, as written"),
    ):
        if name != "views" or views:
            yield Proof(name, not damage, "\n".join(map(str, damage)) or fine)
    if others := len(opened) - len(ours):
        says = f"{counted(others, 'source')} of other tools, which have no checksums"
        yield Proof("others", True, says)


def _wrong_shards(index: SourceIndex) -> Iterator[str]:
    """What reading the last byte of each shard says of those that are not whole."""
    for shard in index.entry.shards:
        last = np.array([shard.bytes])
        try:
            index.store.gather([shard.name], np.zeros(1, np.int64), last - 1, last)
        except (DatasetError, OSError) as error:
            yield str(error)


def not_compared(dataset: Dataset, names: Sequence[str]) -> list[str]:
    """What is taken on trust when the sources `names` are opened, a line each; reads nothing."""
    sources = {name: dataset[name].base for name in names}
    ours = [each for each in sources.values() if isinstance(each, ConvertedDocuments)]
    shards = [shard for source in ours for shard in source.entry.all_shards]
    size = sum(shard.bytes for shard in shards) / 1e6
    columns = sum(len(source.entry.checksums) for source in ours)
    commands = dict.fromkeys(f"jaxdata verify {source.store.url}" for source in ours)
    lines = []
    if ours:
        lines.append(
            f"not compared with their checksums: {counted(len(shards), 'shard')} ({size:,.1f} MB) "
            f"and {counted(columns, 'column')} of the index; to compare them: {', '.join(commands)}"
        )
    if without := [name for name, source in sources.items() if source not in ours]:
        lines.append(f"without checksums, so damage may go unnoticed: {', '.join(without)}")
    return lines
