"""`jaxdata selftest --config CONFIG`: prove jaxdata's guarantees on the user's own data."""

from __future__ import annotations

import time
from typing import Any

import click

from jaxdata.cli.config import OVERRIDABLE, read_config, takes_config


@click.command(
    **OVERRIDABLE, epilog="Exit code 0 if all of them hold, 1 if not. Large datasets are sampled."
)
@takes_config
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Steps to test: half at the start, half sampled at random.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random half."
)
@click.option(
    "--hosts",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Hosts whose parts of a batch the shuffle and the balance are measured for.",
)
@click.option(
    "--microbatches",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Parts of a host's rows that a trainer accumulates gradients over.",
)
@click.option(
    "--documents",
    metavar="COUNT|VIEW",
    default=str(2**20),
    show_default=True,
    help="Documents of a source that the shuffle is measured on, about; or the field `documents` "
    "of the config: the view to read.",
)
@click.option(
    "--trainer",
    metavar="MODULE:FUNCTION",
    help="Check instead that a trainer does what batches say: a function of a batch, as numpy "
    "arrays in the config's layout, that returns the loss.",
)
def selftest(
    config: str,
    steps: int,
    seed: int,
    hosts: int,
    microbatches: int,
    documents: str,
    trainer: str | None,
    overrides: tuple[str, ...],
) -> int:
    """Prove jaxdata's guarantees on the data of a config, and measure its shuffle.

    \b
    plan       every target of every document is trained exactly once per epoch
    mixture    no row of a source is skipped or repeated
    contents   batches hold the documents' tokens, slot by slot
    resuming   a restored state continues with the same batches, at every step
    hosts      any number of hosts together produce the batches of one
    workers    worker processes produce the same batches
    balance    loader.balance leaves each step its rows; how even the work of hosts is

    The shuffle of each of the 8 largest sources is compared with random deals of the same
    documents, from lengths alone. A figure that is POOR breaks no promise; the exit code stays 0.

    With --trainer, small batches are made whose losses tell whether padding counts, documents see
    each other, the last slot of a row is dropped, and so on; see jaxdata.testing.check_trainer.

    \b
        jaxdata selftest --config pretrain --dataset data/mine --pack.seq_len 4096
        jaxdata selftest --config pretrain.yaml --trainer my_trainer:loss_of_batch
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.config import load
    from jaxdata.feed.balance import UNDEALT
    from jaxdata.testing import prove

    measured = int(documents) if documents.isdecimal() and int(documents) else None
    view = () if measured else ("--documents", documents)
    settings = read_config(config, (*overrides, *view))
    if trainer is not None:
        return _check_trainer(trainer, load(settings, loader={"num_workers": 0}))

    def open_loader(shard: tuple[int, int] = (0, 1), num_workers: int = 0) -> Any:
        ours = {"num_workers": num_workers, "layout": "jaxdata", **UNDEALT}
        return load(settings, shard=shard, loader=ours)  # rows do not depend on them

    started, failed = time.perf_counter(), 0
    for proof in prove(open_loader, steps=steps, seed=seed, hosts=hosts, microbatches=microbatches):
        failed += _show(proof)
    _show_shuffle(open_loader(), hosts, measured or 2**20, seed)
    took = f"{time.perf_counter() - started:.1f} s"
    click.echo(f"{failed} of the promises do not hold ({took})" if failed else f"proved in {took}")
    return 1 if failed else 0


def _show(proof: Any) -> bool:
    """Print a proof; returns whether it failed."""
    click.echo(f"{'ok     ' if proof.holds else 'FAILED '} {proof.name:<9} {proof.says}")
    return not proof.holds


def _check_trainer(trainer: str, loader: Any) -> int:
    """Print what a trainer does with batches."""
    from jaxdata.feed.layouts.named import imported
    from jaxdata.testing import trainer_proofs

    failed = untold = total = 0
    for proof in trainer_proofs(imported(trainer, "--trainer "), loader):
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


def _show_shuffle(loader: Any, hosts: int, documents: int, seed: int) -> None:
    """Print how well each source is shuffled."""
    from jaxdata.base.errors import InputError
    from jaxdata.look.terminal import printable
    from jaxdata.testing import shuffle_quality
    from jaxdata.testing.shuffle import shuffle_lines

    batch = loader.batch_sizes[0][1]
    measure = {"batch_size": batch, "hosts": hosts, "documents": documents, "seed": seed}
    try:
        found = shuffle_quality(loader.rows, **measure)
    except InputError as error:
        click.echo(f"shuffle not measured: {printable(str(error))}")
        return
    for quality in found:
        first, *table = shuffle_lines(quality)
        click.echo(f"{'poor   ' if quality.poor else 'ok     '} shuffle   {printable(first)}")
        click.echo("".join(f"{printable(line)}\n" for line in table), nl=False)
