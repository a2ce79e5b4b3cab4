"""`jaxdata convert`.

Options that decide what becomes of the text are fields of the converter's models (see
`converter.options`) and are generated from them. The others are declared here.
"""

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from jaxdata.base.errors import DatasetError
from jaxdata.base.hashing import RULES
from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.options import Setting, command, option, options_of, resumable, was_typed
from jaxdata.converter import ConversionReport, convert as run_conversion
from jaxdata.converter.hashes import RULE
from jaxdata.converter.options import EXECUTION, HEADINGS, INPUT, SPLITS, TASK, TOKENS
from jaxdata.converter.parameters import options
from jaxdata.converter.tasks import task_names
from jaxdata.dataset.opening import open_dataset
from jaxdata.foreign.cerebras import read_params
from jaxdata.tokenizers import Tokenizer, load

if TYPE_CHECKING:
    from jaxdata.dedup.api import DedupReport

_FRONT = (
    *("output", "source", "tokenizer", "task", "text_key", "prompt_key", "completion_key"),
    *("messages_key", "chat_template", "keep", "split", "split_ratio", "dedup", "append"),
    "workers",
)
"""What `--help` shows."""
_ALSO = (
    *("bos", "minhash", "transform", "add_special", "cerebras_params", "train_on"),
    *("chosen_key", "rejected_key", "ids_key", "mask_key", "labels_key", "fim_rate"),
)
"""What else is an option; the rest are settings."""


def _generated() -> list[click.Option]:
    """The options of the converter's models and of every task that is registered by now."""
    says = " ".join(f"{name}: {says}." for name, says in task_names().items())
    names: dict[str, Any] = {"type": click.Choice(list(task_names())), "is_eager": True}
    task = Setting(["--task"], help=says, metavar="T", default="lm", show_default=True, **names)
    # None where one is not given, since a task may have its own default.
    about = {"required": False, "default": None, "show_default": False}
    found = [
        option(one.name, one.field, one.heading, help=one.help, tasks=one.helps, **about)
        for one in options().values()
    ]
    return [task, *found]


def _cerebras(context: click.Context, _: Any, value: str | None) -> None:
    """Take defaults from a file: the command line overrides it, and it overrides our defaults."""
    if value is None:
        return
    task = context.params.get("task")
    found = read_params(value, task if was_typed(context, "task") else None)
    context.params["task"] = found.options["task"]
    context.default_map = {**(context.default_map or {}), **found.options}
    for note in found.notes:
        click.echo(f"{value}: {note}", err=True)


_CEREBRAS = "YAML file of Cerebras' preprocessing. Options on the command line override it."
_MORE = [
    *options_of(
        run_conversion,
        INPUT,
        files_from={
            "help": "Files that list more inputs, one per line; with commas between them.",
            "metavar": "FILES",
        },
        text_suffix={
            "help": "More suffixes of text files (.py,.rs): each file is a document.",
            "metavar": "SUFFIXES",
        },
        on_error="Set records without usable text aside in quarantine.jsonl, or stop at the first.",
    ),
    Setting(
        ["--cerebras-params"],
        heading=TASK,
        help=_CEREBRAS,
        metavar="FILE",
        callback=_cerebras,
        expose_value=False,
    ),
    *options_of(
        run_conversion,
        TASK,
        template_text_ok="Let the chat template, prefixes and separator write what looks like a "
        "special token (<|im_start|>) and is none of the tokenizer. Without it, that is refused.",
    ),
    *options_of(
        run_conversion,
        SPLITS,
        split={"help": "Their split: train, val, …", "metavar": "NAME"},
        append="Add new files to a source that is there.",
    ),
    *options_of(
        run_conversion,
        EXECUTION,
        workers={"help": "Processes.  [default: one per core]", "ge": 1},
        engine="Run on this machine, or on the Ray cluster of $RAY_ADDRESS or this machine, whose "
        "nodes all see inputs and output.",
        encoder="What encodes texts, always with the ids of the tokenizer's library: the library "
        "itself, a faster one for byte-level BPE (jaxdata[fast]), words for SentencePiece BPE, or "
        "whichever can.",
    ),
]
_VIEW = "exact"
"""What --dedup calls the view that it makes."""
_EPILOG = """\b
Examples:
  jaxdata convert pages.jsonl -o data/mine
  jaxdata convert chats/ more/*.parquet -o data/mine --source chats \\
      --task sft --tokenizer my.model --chat-template chatml
"""


@command(
    front=_FRONT, also=_ALSO, headings=HEADINGS, generated=_generated, epilog=_EPILOG, options=_MORE
)
def convert(
    inputs: tuple[str, ...] = (),
    output: str = setting(..., "Dataset: a folder or URL.", flag="-o --output", metavar="URL"),
    source: str | None = setting(
        None, "Name of these documents.  [default: the input's]", metavar="NAME"
    ),
    tokenizer: str | None = setting(
        None,
        "A path, a name (gpt2), KIND:PATH or bytes.  [default: the dataset's, else bytes]",
        metavar="SPEC",
    ),
    eod: str | int | None = setting(None, "End-of-document token, by text or id.", heading=TOKENS),
    bos_token: str | int | None = setting(None, "Begin-of-sequence token.", heading=TOKENS),
    pad_token: str | int | None = setting(None, "Padding token.", heading=TOKENS),
    add_special: list[str] = setting(
        list, "Special tokens that the vocabulary lacks.", heading=TOKENS, metavar="TOKENS"
    ),
    dedup: str | None = setting(
        None,
        "View without exact copies; RULE as in dedup, exact.",
        type=click.Choice(["exact", *(f"exact:{rule}" for rule in RULES)]),
        heading=SPLITS,
        metavar="exact[:RULE]",
    ),
    minhash: bool = setting(
        False, "Keep hashes of documents, so that dedup hashes no text.", heading=SPLITS
    ),
    **options: Any,
) -> None:
    """Convert text to a source of a dataset, once; training reads it from there.

    INPUT is files, folders or globs, on disk, gs://, s3:// or https://, of .jsonl, .json, .csv,
    .tsv, .txt, .md, .rst, .html, .parquet and .arrow, compressed (.gz, .zst) or in archives (.tar);
    or -, lines of JSON. A line of JSON, row of a table or text file is a document. The same command
    resumes after an interruption.
    """
    if not inputs and not options["files_from"]:
        raise click.UsageError("give files, folders or globs to convert, or --files-from")
    rule = dedup and (dedup.partition(":")[2] or RULE)
    given = {name: value for name, value in options.items() if value is not None}
    special = dict[str, Any](eod=eod, bos=bos_token, pad=pad_token, add_special=add_special)
    with resumable():
        with progress_bar("converting", in_bytes=True) as progress:
            report = run_conversion(
                list(inputs),
                output=output,
                source=source or _name_of(inputs),
                tokenizer=load(tokenizer, **special) if tokenizer else _default(output, special),
                minhash=minhash,
                exact_hash=rule,
                progress=progress,
                command=click.get_current_context().find_root().obj,
                **given,
            )
        how = {name: options[name] for name in ("workers", "engine")}
        found = _without_copies(report, exact=rule, **how) if rule else None
    click.echo(report)
    if found:
        from jaxdata.cli.dedup import say_views

        say_views(_VIEW, found.views)
    words = ["jaxdata", "inspect", report.output, "--document", f"{report.sources[0]}:0"]
    click.echo(f"next: {shlex.join(words)}")


def _name_of(inputs: Sequence[str]) -> str:
    """The source of one file or folder, by its name."""
    stem = inputs[0].rstrip("/").rpartition("/")[2].partition(".")[0] if len(inputs) == 1 else ""
    if not re.fullmatch(r"\w[\w-]*", stem):
        raise click.UsageError("give --source, the name of these documents, such as 'web'")
    click.echo(f"--source {stem}, by the name of the input", err=True)
    return stem


def _default(output: str, special: dict[str, Any]) -> Tokenizer:
    """The tokenizer of the dataset that is there; where none is, bytes."""
    try:
        found = open_dataset(output).tokenizer
    except DatasetError:
        found = None
    if found is None or any(special.values()):
        click.echo("--tokenizer bytes: none is given, and no dataset has one", err=True)
        return load("bytes", **special)
    click.echo(f"--tokenizer {found.name}, that of {output}", err=True)
    return found


def _without_copies(report: ConversionReport, **how: Any) -> "DedupReport":
    """Make the view of what was converted that drops exact copies, from the hashes that were kept.

    With several splits it is a view of the first one, without copies of documents of the others.
    """
    from jaxdata.dedup.api import deduplicate

    first = report.sources[0].partition("/")[0]
    own = [name for name in report.sources if name.startswith(f"{first}/")]
    others = [name for name in report.sources if name not in own]
    given = {"sources": own, "split": first, "against": others, "near": False, **how}
    return deduplicate(report.output, _VIEW, stage=progress_bar, **given)
