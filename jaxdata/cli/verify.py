"""`jaxdata verify`: the files of a dataset against checksums, or the laws on a config's data."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from jaxdata.cli.config import OVERRIDABLE, Given, takes_data

if TYPE_CHECKING:
    from jaxdata.dataset.verify import Verification

_EPILOG = """\b
Exit code 0 if all is as it should be, 1 if not. Large datasets are sampled.
  jaxdata verify data/mine
  jaxdata verify pretrain --dataset data/mine --pack.seq_len 4096
  jaxdata verify pretrain.yaml --trainer my_trainer:loss_of_batch
"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@takes_data
@click.option("--steps", type=click.IntRange(1), help="Steps to test.  [default: 20]")
@click.option(
    "--hosts",
    type=click.IntRange(1),
    help="Hosts for the measures of the shuffle and of balance.  [default: 8]",
)
@click.option(
    "--microbatches",
    type=click.IntRange(1),
    help="Parts of a host's rows that a trainer takes one by one.  [default: 1]",
)
@click.option(
    "--trainer",
    metavar="MODULE:LOSS[,UPDATE]",
    help="Check instead that a trainer does what batches say: a function of a batch, as numpy "
    "arrays in the config's layout, that returns the loss; and one of the micro-batches of an "
    "update, that returns the weights after it.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Of a DATASET: files to read at once.  [default: one per core]",
)
@click.option("--json", "as_json", is_flag=True, help="Of a DATASET: print one JSON object.")
def verify(
    given: Given,
    steps: int | None,
    hosts: int | None,
    microbatches: int | None,
    trainer: str | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Compare a dataset's files with their checksums, or prove the laws on a CONFIG's data.

    A DATASET, or rows that `jaxdata export` wrote: every file is read once; damage is listed with
    its remedy. A CONFIG, with fields set as you like:

    \b
    plan       every target of every document is trained exactly once per epoch
    mixture    no row of a source is skipped or repeated
    contents   batches hold the documents' tokens, slot by slot
    resuming   a restored state continues with the same batches, at every step
    hosts      any number of hosts together produce the batches of one
    workers    worker processes produce the same batches
    balance    loader.balance leaves each step its rows; how even hosts work
    shuffle    each large source, against random deals; POOR breaks no law
    """  # noqa: D301 - \b is a mark of click's
    if given.config is not None:
        if as_json or threads:
            raise click.UsageError("--json and --threads are for a DATASET, not for a CONFIG")
        parts = hosts or 8, microbatches or 1
        return _prove(given.settings(), steps or 20, *parts, trainer)
    if given.overrides or any(each is not None for each in (steps, hosts, microbatches, trainer)):
        raise click.UsageError(
            "these options are for the laws on a CONFIG: give it as well, as in "
            f"jaxdata verify --config demo --dataset {given.dataset}"
        )
    return _compare(str(given.dataset), threads, as_json)


def _compare(path: str, threads: int | None, as_json: bool) -> int:
    from jaxdata.base.errors import InputError
    from jaxdata.base.progress import progress_bar
    from jaxdata.dataset.foreign import is_foreign
    from jaxdata.look.terminal import printable, show

    if is_foreign(path):
        raise InputError(
            f"{path} has no checksums to compare with. Use jaxdata inspect: opening it checks its "
            "index against the sizes of its files"
        )
    with progress_bar("verifying", in_bytes=True) as progress:
        found = _checker(path)(path, threads=threads, progress=progress)
    show(map(printable, str(found).split("\n")), found.as_json(), as_json=as_json)
    return 0 if found.whole else 1


def _checker(path: str) -> Callable[..., Verification]:
    """The function that verifies this kind of folder."""
    from jaxdata.base.errors import DatasetError
    from jaxdata.dataset.manifest import MANIFEST
    from jaxdata.dataset.verify import verify as verify_dataset
    from jaxdata.foreign.row_manifest import ROWS
    from jaxdata.foreign.row_records import verify_rows
    from jaxdata.storage import open_store

    store = open_store(path)
    for name, check in ((MANIFEST, verify_dataset), (ROWS, verify_rows)):
        if store.read(name) is not None:
            return check
    if not store.list():
        raise DatasetError(
            f"{store.url} does not exist, or is empty: expected a dataset or exported rows"
        )
    raise DatasetError(
        f"{store.url} has neither {MANIFEST} (a dataset) nor {ROWS} (exported rows). If a command "
        "was interrupted, run it again to finish it; otherwise restore that file from a backup"
    )


def _prove(settings: Any, steps: int, hosts: int, microbatches: int, trainer: str | None) -> int:
    from jaxdata.config import load
    from jaxdata.feed.balance import UNDEALT
    from jaxdata.testing import prove

    if trainer is not None:
        return _check_trainer(trainer, load(settings, loader={"num_workers": 0}))

    def open_loader(shard: tuple[int, int] = (0, 1), num_workers: int = 0) -> Any:
        ours = {"num_workers": num_workers, "layout": "jaxdata", **UNDEALT}
        return load(settings, shard=shard, loader=ours)  # rows do not depend on them

    started, failed = time.perf_counter(), 0
    for proof in prove(open_loader, steps=steps, hosts=hosts, microbatches=microbatches):
        failed += _show(proof)
    _show_shuffle(open_loader(), hosts)
    took = f"{time.perf_counter() - started:.1f} s"
    click.echo(f"{failed} of the promises do not hold ({took})" if failed else f"proved in {took}")
    return 1 if failed else 0


def _show(proof: Any) -> bool:
    """Print a proof; returns whether it failed."""
    click.echo(f"{'ok     ' if proof.holds else 'FAILED '} {proof.name:<9} {proof.says}")
    return not proof.holds


def _check_trainer(trainer: str, loader: Any) -> int:
    """Print what a trainer does with batches."""
    from jaxdata.feed.layouts import imported
    from jaxdata.testing import trainer_proofs

    loss, _, update = trainer.partition(",")
    updates = imported(f"{loss.partition(':')[0]}:{update}", "--trainer ") if update else None
    failed = untold = total = 0
    for proof in trainer_proofs(imported(loss, "--trainer "), loader, update=updates):
        failed += _show(proof)
        untold += not proof.tested
        total += 1
    not_tested = f", {untold} are not tested" if untold else ""
    click.echo(
        f"{failed} of {total} checks of the trainer do not hold{not_tested}"
        if failed
        else f"{total - untold} checks of the trainer hold{not_tested}"
    )
    return 1 if failed else 0


def _show_shuffle(loader: Any, hosts: int) -> None:
    """Print how well each source is shuffled."""
    from jaxdata.base.errors import InputError
    from jaxdata.look.terminal import printable
    from jaxdata.testing import shuffle_quality
    from jaxdata.testing.shuffle import shuffle_lines

    try:
        found = shuffle_quality(loader.rows, batch_size=loader.batch_sizes[0][1], hosts=hosts)
    except InputError as error:
        click.echo(f"shuffle not measured: {printable(str(error))}")
        return
    for quality in found:
        first, *table = shuffle_lines(quality)
        click.echo(f"{'poor   ' if quality.poor else 'ok     '} shuffle   {printable(first)}")
        click.echo("".join(f"{printable(line)}\n" for line in table), nl=False)
