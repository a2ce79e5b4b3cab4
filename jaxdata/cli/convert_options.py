"""The options of `jaxdata convert`, by what they are about."""

from __future__ import annotations

import click

from jaxdata.cli.groups import group
from jaxdata.convert.parts import RECORD_BYTES
from jaxdata.convert.streams import EXPANSION

__all__ = ["dealing", "filtering", "guarding", "reading", "running"]

reading = group(
    "What is read",
    click.option(
        "--files-from",
        multiple=True,
        metavar="FILE",
        help="A file that names more inputs, one a line. May be given several times.",
    ),
    click.option(
        "--text-key",
        default="text",
        show_default=True,
        help="The key of each JSON object, or the column of a table, that holds the text. A dot "
        "goes into objects (data.text), commas join several (title,body).",
    ),
    click.option(
        "--text-joiner",
        metavar="TEXT",
        help=r"What stands between the texts of several keys; \n is a new line.  "
        "[default: an empty line]",
    ),
    click.option(
        "--keep",
        metavar="KEYS",
        help="Keys, with commas between, whose values are kept in the index (url,lang).",
    ),
    click.option(
        "--transform",
        metavar="MODULE:FUNCTION",
        help="Your own function: gets each record as a dict; returns a record, a list of records, "
        "or None to leave it out. Looked for in the working folder too.",
    ),
)

filtering = group(
    "Cleaning, none unless asked for",
    click.option("--ftfy", is_flag=True, help="Mend wrongly decoded text (extra 'clean')."),
    click.option(
        "--normalize",
        type=click.Choice(["NFC", "NFD", "NFKC", "NFKD"], case_sensitive=False),
        help="Bring text into a Unicode normal form.",
    ),
    click.option("--wikitext", is_flag=True, help="Undo the tokenisation of the WikiText corpora."),
    click.option("--min-chars", type=click.IntRange(1), help="Drop shorter documents."),
    click.option("--max-chars", type=click.IntRange(1), help="Drop longer documents."),
    click.option("--min-tokens", type=click.IntRange(1), help="Likewise, in tokens with EOD."),
    click.option("--max-tokens", type=click.IntRange(1), help="Likewise."),
)

dealing = group(
    "Where it goes",
    click.option("--split", default="train", show_default=True, help="Its split: train, val, ..."),
    click.option(
        "--append",
        is_flag=True,
        help="Add to a source that is there the documents of files that it does not have yet. A "
        "run that reads it goes on with what it knew.",
    ),
    click.option(
        "--split-ratio",
        metavar="NAME=SHARE,...",
        help="Deal documents to splits instead, by a hash of each: train=98,val=1,test=1. The "
        "same document always goes to the same split.",
    ),
    click.option(
        "--split-by",
        metavar="KEY",
        help="Deal by the value of this key: all documents of a url in one split.",
    ),
    click.option(
        "--split-contiguous",
        is_flag=True,
        help="Cut into splits by position, the first 98 % and so on, as Megatron does.",
    ),
)

guarding = group(
    "Limits that real corpora do not meet",
    click.option(
        "--max-record-bytes",
        type=click.IntRange(1),
        default=RECORD_BYTES,
        show_default=True,
        help="Longer lines, text files and values are set aside.",
    ),
    click.option(
        "--max-expansion",
        type=click.IntRange(1),
        default=EXPANSION,
        show_default=True,
        help="A compressed file that grows to more than so many times its size is refused.",
    ),
)

running = group(
    "How it is done",
    click.option("--workers", type=click.IntRange(1), help="Processes.  [default: one a core]"),
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Processes of this machine, or a Ray cluster whose nodes all see inputs and output.",
    ),
    click.option(
        "--ray-address",
        metavar="HOST:PORT",
        help="The cluster.  [default: $RAY_ADDRESS, or the one this machine is in]",
    ),
    click.option("--resume", is_flag=True, help="Only go on with what was begun; do not begin."),
    click.option(
        "--stats-seq-len",
        type=click.IntRange(1),
        metavar="TOKENS",
        help="At the end, also count rows of this length and their padding, packed each way.",
    ),
)
