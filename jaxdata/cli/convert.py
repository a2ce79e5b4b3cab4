"""`jaxdata convert`.

Options that decide what becomes of the text are fields of the converter's models (see
`converter.options`) and are generated from them. The others are declared here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from jaxdata.base.errors import DatasetError
from jaxdata.base.hashing import RULES
from jaxdata.base.progress import progress_bar
from jaxdata.base.wording import counted
from jaxdata.cli.options import (
    Command,
    Setting,
    flag_of,
    options_of,
    token,
    token_texts,
    values_of,
    was_typed,
)
from jaxdata.converter import ConversionReport
from jaxdata.converter import convert as run_conversion
from jaxdata.converter.hashes import RULE
from jaxdata.converter.options import (
    EXECUTION,
    HEADINGS,
    INPUT,
    LIMITS,
    SPLITS,
    TASK,
    TOKENS,
    Option,
)
from jaxdata.converter.parameters import options
from jaxdata.converter.tasks.registry import task_names
from jaxdata.dataset.opening import open_dataset
from jaxdata.foreign.cerebras import read_params
from jaxdata.tokenizers import Tokenizer, load

if TYPE_CHECKING:
    from rich.table import Table

    from jaxdata.dedup import DedupReport
    from jaxdata.look.strategies import PackingCost

_FRONT = (
    *("output", "source", "tokenizer", "task", "text_key", "prompt_key", "completion_key"),
    *("messages_key", "chat_template", "keep", "split", "split_ratio", "dedup", "append"),
    "workers",
)
"""What `--help` shows."""


_setting = partial(click.option, cls=Setting)


def _generated() -> list[click.Option]:
    """The options of the converter's models and of every task that is registered by now."""
    task = Setting(
        ["--task"],
        type=click.Choice(list(task_names())),
        metavar="T",
        default="lm",
        show_default=True,
        is_eager=True,
        help=" ".join(f"{name}: {says}." for name, says in task_names().items()),
    )
    return [task, *map(_option, options().values())]


def _option(one: Option) -> click.Option:
    """The option of a field; None where it is not given, since a task may have its own default."""
    values = {**values_of(one.field), "help": one.help, "default": None}
    return Setting([flag_of(one.name, one.field)], heading=one.heading, tasks=one.helps, **values)


def _cerebras(context: click.Context, _: Any, value: str | None) -> None:
    """Take defaults from a file: the command line overrides it, and it overrides our defaults."""
    if value is None:
        return
    task = context.params.get("task")
    found = read_params(value, task if was_typed(context, "task") else None)
    context.params["task"] = found.options["task"]
    length = {"stats_seq_len": found.seq_len} if found.seq_len else {}
    context.default_map = {**(context.default_map or {}), **found.options, **length}
    for note in found.notes:
        click.echo(f"{value}: {note}", err=True)


_VIEW = "exact"
"""What --dedup calls the view that it makes."""
_EPILOG = """\b
Examples:
  jaxdata convert pages.jsonl -o data/mine
  jaxdata convert chats/ more/*.parquet -o data/mine --source chats \\
      --task sft --tokenizer my.model --chat-template chatml
"""


@click.command(cls=Command, front=_FRONT, headings=HEADINGS, generated=_generated, epilog=_EPILOG)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.option("--output", "-o", required=True, metavar="URL", help="Dataset: a folder or URL.")
@click.option("--source", metavar="NAME", help="Name of these documents.  [default: the input's]")
@click.option(
    "--tokenizer",
    metavar="SPEC",
    help="A path, a name (gpt2), KIND:PATH or bytes.  [default: the dataset's, else bytes]",
)
@options_of(
    run_conversion,
    INPUT,
    files_from={
        "help": "File that lists more inputs, one per line. May be given several times.",
        "multiple": True,
        "metavar": "FILE",
    },
    text_suffix={
        "help": "More suffixes of text files, separated by commas (.py,.rs): each file is a "
        "document.",
        "default": "",
        "metavar": "SUFFIXES",
    },
    on_error="Set records without usable text aside in quarantine.jsonl, or stop at the first.",
)
@_setting("--eod", heading=TOKENS, help="End-of-document token, by text or id.", type=token)
@_setting("--bos-token", heading=TOKENS, help="Begin-of-sequence token, by text or id.", type=token)
@_setting("--pad-token", heading=TOKENS, help="Padding token, by text or id.", type=token)
@_setting(
    "--add-special",
    heading=TOKENS,
    help="Special tokens to add to the vocabulary where it lacks them, separated by commas.",
    type=token_texts,
    default=[],
    metavar="TOKENS",
)
@_setting(
    "--cerebras-params",
    heading=TASK,
    help="YAML file of Cerebras' preprocessing. Options on the command line override it.",
    metavar="FILE",
    callback=_cerebras,
    expose_value=False,
)
@options_of(
    run_conversion,
    TASK,
    template_text_ok="Let the chat template, prefixes and separator write what looks like a "
    "special token (<|im_start|>) and is none of the tokenizer. Without it, that is refused.",
)
@options_of(
    run_conversion,
    SPLITS,
    split={"help": "Their split: train, val, …", "metavar": "NAME"},
    append="Add new files to a source that is there.",
)
@_setting(
    "--dedup",
    heading=SPLITS,
    help="View without exact copies; RULE as in dedup --exact.",
    type=click.Choice(["exact", *(f"exact:{rule}" for rule in RULES)]),
    metavar="exact[:RULE]",
)
@_setting(
    "--minhash",
    heading=SPLITS,
    help="Keep hashes of each document (128 bytes), with which jaxdata dedup hashes no text.",
    is_flag=True,
)
@options_of(
    run_conversion,
    LIMITS,
    max_expansion=(
        "Reject a compressed file that expands to more than this many times its size.",
        1,
    ),
)
@options_of(
    run_conversion,
    EXECUTION,
    workers={
        "help": "Processes.  [default: one per core]",
        "type": click.IntRange(1),
        "metavar": "N",
    },
    engine="Run on this machine, or on a Ray cluster whose nodes all see inputs and output.",
    encoder="What encodes texts, always with the ids of the tokenizer's library: the library "
    "itself, a faster one for byte-level BPE (jaxdata[fast]), words for SentencePiece BPE, or "
    "whichever can; verify encodes every text twice and compares.",
    ray_address={
        "help": "Ray cluster to join.  [default: $RAY_ADDRESS, or the one this machine is in]",
        "metavar": "HOST:PORT",
    },
    resume="Resume an unfinished conversion; fail if there is none.",
    verify_inputs="Read inputs that were converted before again, and compare them with what was "
    "read then. Without it only files are read again that may have changed.",
)
@_setting(
    "--stats",
    heading=EXECUTION,
    help="At the end, print the whole table of what was counted.",
    is_flag=True,
)
@_setting(
    "--stats-seq-len",
    heading=EXECUTION,
    help="Also rows of this length and their padding for each packing strategy.",
    type=click.IntRange(1),
    metavar="TOKENS",
)
def convert(
    inputs: tuple[str, ...],
    output: str,
    tokenizer: str | None,
    eod: str | int | None,
    bos_token: str | int | None,
    pad_token: str | int | None,
    add_special: list[str],
    stats: bool,
    stats_seq_len: int | None,
    dedup: str | None,
    **options: Any,
) -> None:
    """Convert text to a source of a dataset, once; training reads it from there.

    INPUT is files, folders or globs, on disk, gs://, s3:// or https://, of .jsonl, .json, .csv,
    .tsv, .txt, .md, .rst, .html, .parquet and .arrow, compressed (.gz, .zst) or in archives (.tar);
    hf://datasets/USER/NAME; or -, lines of JSON. A line of JSON, row of a table or text file is a
    document. The same command resumes after an interruption.
    """
    if not inputs and not options["files_from"]:
        raise click.UsageError("give files, folders or globs to convert, or --files-from")
    rule = dedup and (dedup.partition(":")[2] or RULE)
    options["exact_hash"] = rule
    options["source"] = options["source"] or _name_of(inputs)
    given = {name: value for name, value in options.items() if value is not None}
    special: dict[str, Any] = {"eod": eod, "bos": bos_token, "pad": pad_token}
    special["add_special"] = add_special
    loaded = load(tokenizer, **special) if tokenizer else _tokenizer_of(output, special)
    try:
        with progress_bar("converting", in_bytes=True) as progress:
            report = run_conversion(
                list(inputs),
                output=output,
                tokenizer=loaded,
                progress=progress,
                command=click.get_current_context().find_root().obj,
                **given,
            )
        how = {name: options[name] for name in ("workers", "engine", "ray_address")}
        found = _without_copies(report, exact=rule, **how) if rule else None
    except KeyboardInterrupt:
        raise click.Abort("Finished work is kept: the same command resumes") from None
    click.echo(report)
    if found:
        click.echo("\n".join(_copies(found)))
    click.echo(_next_command(report))
    if stats or stats_seq_len:
        _print_statistics(report, stats_seq_len)


def _name_of(inputs: Sequence[str]) -> str:
    """The source of one file or folder, by its name."""
    stem = inputs[0].rstrip("/").rpartition("/")[2].partition(".")[0] if len(inputs) == 1 else ""
    if not re.fullmatch(r"\w[\w-]*", stem):
        raise click.UsageError("give --source, the name of these documents, such as 'web'")
    click.echo(f"--source {stem}, by the name of the input", err=True)
    return stem


def _tokenizer_of(output: str, special: dict[str, Any]) -> Tokenizer:
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


def _without_copies(report: ConversionReport, **how: Any) -> DedupReport:
    """Make the view of what was converted that drops exact copies, from the hashes that were kept.

    With several splits it is a view of the first one, without copies of documents of the others.
    """
    from jaxdata.dedup import deduplicate

    first = report.sources[0].partition("/")[0]
    own = [name for name in report.sources if name.startswith(f"{first}/")]
    others = [name for name in report.sources if name not in own]
    given = {"sources": own, "split": first, "against": others, "near": False, **how}
    return deduplicate(report.output, _VIEW, stage=progress_bar, **given)


def _copies(found: DedupReport) -> Iterator[str]:
    """What the views leave out, and how to train with them."""
    for source, view in found.views.items():
        every, kept = view.account.source, view.account.kept
        yield (
            f"exact copies in {source}: {every.documents - kept.documents:,} of "
            f"{counted(every.documents, 'document')}, {every.tokens - kept.tokens:,} of "
            f"{counted(every.tokens, 'token')}"
        )
    yield (
        f"train without them: documents: {_VIEW} in a config, or --documents {_VIEW}; they "
        f"stay on disk, and jaxdata dedup {found.dataset} --remove {_VIEW} removes the list"
    )


def _print_statistics(report: ConversionReport, seq_len: int | None) -> None:
    """Print what was counted and, if asked, the rows and padding of each way to pack it."""
    from rich.console import Console

    from jaxdata.dataset.manifest import read_manifest
    from jaxdata.look.dataset_summary import statistics_table
    from jaxdata.storage import open_store

    console, manifest = Console(), read_manifest(open_store(report.output))
    console.print(statistics_table(manifest, report.sources))
    if seq_len:
        console.print(_packing(report, seq_len))


def _packing(report: ConversionReport, seq_len: int) -> Table:
    """The rows of each way to pack the sources, which their statistics keep."""
    from jaxdata.dataset.opening import open_dataset
    from jaxdata.look.strategies import compare_strategies, packing_table, summed

    dataset = open_dataset(report.output)
    sources = {name: dataset.source(*name.split("/", 1)) for name in report.sources}
    costs = {name: compare_strategies([one], seq_len=seq_len) for name, one in sources.items()}
    _keep(report.output, {name: _as_statistics(some, seq_len) for name, some in costs.items()})
    return packing_table(summed([*costs.values()]), seq_len=seq_len)


def _as_statistics(costs: Sequence[PackingCost], seq_len: int) -> dict[str, Any]:
    names = ("rows", "slots", "padding", "dropped")
    counts: dict[str, Any] = {
        cost.strategy: {name: getattr(cost, name) for name in names} for cost in costs
    }
    return {"seq_len": seq_len, **counts}


def _keep(output: str, packing: dict[str, dict[str, Any]]) -> None:
    """Write what packing costs into the statistics of sources."""
    from jaxdata.dataset.manifest import Manifest, update_manifest
    from jaxdata.storage import open_store

    def with_packing(manifest: Manifest | None) -> Manifest:
        assert manifest is not None
        entries = {
            name: manifest.sources[name].model_copy(
                update={"statistics": manifest.sources[name].statistics | {"packing": costs}}
            )
            for name, costs in packing.items()
        }
        return manifest.model_copy(update={"sources": manifest.sources | entries})

    update_manifest(open_store(output), with_packing)


def _next_command(report: ConversionReport) -> str:
    words = ["jaxdata", "inspect", report.output, "--document", f"{report.sources[0]}:0"]
    return f"next: {shlex.join(words)}"
