"""`jaxdata delete`: overwrite documents of a dataset."""

from collections import defaultdict
from pathlib import Path

import click

from jaxdata.base.errors import counted
from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.options import JSON, command, document_named
from jaxdata.dataset.deleting import delete_documents
from jaxdata.look.terminal import show
from jaxdata.storage.small_files import read_lines

_EPILOG = """\b
Examples:
  jaxdata delete data/mine --documents ids.txt
  jaxdata delete data/mine --urls urls.txt --sources web
  jaxdata delete data/mine --where "author == 'A. Person'"
  jaxdata inspect pretrain.yaml --deleted --runs runs/mine
"""


@command(epilog=_EPILOG)
def delete(
    dataset: str,
    documents: Path | None = setting(
        None, "Delete these: a line each, [SPLIT/]SOURCE:ID, like web:17.", metavar="FILE"
    ),
    where: str | None = setting(None, "Delete the documents of which this holds.", metavar="EXPR"),
    urls: Path | None = setting(None, "Delete those of these URLs: a line each.", metavar="FILE"),
    sources: list[str] | None = setting(None, "Where to look, [SPLIT/]SOURCE.  [default: all]"),
    as_json: bool = JSON,
) -> None:
    """Overwrite documents of a dataset: no byte of them is left in it.

    DATASET is a folder or URL. Tokens, masks, side arrays, kept fields and hashes become zeros.
    Other documents keep their numbers, and new runs do not see the deleted ones. A run under way
    goes on with the same rows, in which their slots are padding, if its config names the generation
    that it reads, as in generations: {web: 0}. The same command finishes one that was interrupted.
    """
    given = {"--documents": documents, "--where": where, "--urls": urls}
    typed = [name for name, value in given.items() if value is not None]
    if len(typed) != 1:
        raise click.UsageError(f"give one of {', '.join(given)}: which documents to delete")
    if documents is not None and sources:
        raise click.UsageError("--documents names the sources: leave out --sources")
    with progress_bar("deleting documents") as progress:
        deleted = delete_documents(
            dataset,
            documents=None if documents is None else _numbers(documents),
            where=where,
            urls=None if urls is None else _lines(urls),
            sources=sources,
            command=f"jaxdata delete {typed[0]}",
            progress=progress,
        )
    lines = [
        f"{name}: {counted(each.documents, 'document')} of {counted(each.tokens, 'token')} deleted"
        for name, each in deleted.items()
    ]
    nothing = "nothing to delete: no such document, or it was deleted before"
    plain = {name: each.model_dump() for name, each in deleted.items()}
    show(lines or [nothing], plain, as_json=as_json)


def _lines(file: Path) -> list[str]:
    lines = read_lines(file, "the list", "text in UTF-8, one document a line")
    return [line.strip() for line in lines if line.strip()]


def _numbers(file: Path) -> dict[str, list[int]]:
    """The numbers of documents by source, as a file has them."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for line in _lines(file):
        name, number = document_named(line, f"{file}: {line[:100]!r}")
        found[name].append(number)
    return dict(found)
