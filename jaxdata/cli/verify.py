"""`jaxdata verify`: the files of a dataset against checksums, or the laws on a config's data."""

import time
from typing import TYPE_CHECKING, Any

import click

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.config import Given, RunCommand
from jaxdata.cli.options import JSON, command, refuse
from jaxdata.look.terminal import printable, show

if TYPE_CHECKING:
    from jaxdata.config import Config

_EPILOG = """\b
Exit code 0 if all is as it should be, 1 if not. Large datasets are sampled.
  jaxdata verify data/mine
  jaxdata verify pretrain --dataset data/mine --pack.seq_len 4096
  jaxdata verify pretrain.yaml --trainer my_trainer:loss_of_batch
"""


@command(cls=RunCommand, epilog=_EPILOG)
def verify(
    given: Given,
    steps: int = setting(20, "Steps to test.", ge=1),
    hosts: int = setting(8, "Hosts for the measures of the shuffle and of balance.", ge=1),
    trainer: str | None = setting(
        None,
        "Check instead that a trainer does what batches say: a function of a batch, as numpy "
        "arrays in the config's layout, that returns the loss; and one of the micro-batches of an "
        "update, that returns the weights after it.",
        metavar="MODULE:LOSS[,UPDATE]",
    ),
    as_json: bool = JSON,
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
    if given.config is None:
        remedy = f"give it as well, as in jaxdata verify --config demo --dataset {given.dataset}"
        laws = f"{{}} is for the laws on a CONFIG: {remedy}"
        refuse(("steps", "hosts", "trainer"), laws)
        if given.overrides:
            raise click.UsageError(laws.replace("{}", given.overrides[0]))
        return _compare(str(given.dataset), as_json)
    refuse(("as_json",), "{} is for a DATASET, not for a CONFIG")
    settings, started = given.settings(), time.perf_counter()
    if trainer is not None:
        return _check_trainer(trainer, settings)
    failed = _prove(settings, steps, hosts)
    took = f"{time.perf_counter() - started:.1f} s"
    click.echo(f"{failed} of the promises do not hold ({took})" if failed else f"proved in {took}")
    return 1 if failed else 0


def _compare(path: str, as_json: bool) -> int:
    from jaxdata.dataset.foreign import is_foreign
    from jaxdata.dataset.manifest import MANIFEST
    from jaxdata.dataset.verify import verify as verify_dataset
    from jaxdata.foreign.materialize import verify_rows
    from jaxdata.foreign.record_formats import ROWS
    from jaxdata.storage import open_store

    if is_foreign(path):
        raise InputError(
            f"{path} has no checksums to compare with. Use jaxdata inspect: opening it checks its "
            "index against the sizes of its files"
        )
    store = open_store(path)
    kinds = {MANIFEST: verify_dataset, ROWS: verify_rows}
    check = next((kinds[name] for name in kinds if store.read(name) is not None), None)
    if check is None:
        raise DatasetError(
            f"{store.url} does not exist, or has neither {MANIFEST} (a dataset) nor {ROWS} "
            "(exported rows). If a command was interrupted, run it again to finish it; otherwise "
            "restore that file from a backup"
        )
    with progress_bar("verifying", in_bytes=True) as progress:
        found = check(path, progress=progress)
    show(map(printable, str(found).split("\n")), found.as_json(), as_json=as_json)
    return 0 if found.whole else 1


def _prove(settings: "Config", steps: int, hosts: int) -> int:
    """Prove the laws on the rows of a config; returns how many do not hold."""
    from jaxdata.config import load
    from jaxdata.feed.schedule import UNDEALT
    from jaxdata.testing import prove, shuffle_quality
    from jaxdata.testing.shuffle import shuffle_lines

    def open_loader(shard: tuple[int, int] = (0, 1), num_workers: int = 0) -> Any:
        ours = {"num_workers": num_workers, "layout": "jaxdata", **UNDEALT}
        return load(settings, shard=shard, loader=ours)  # rows do not depend on them

    parts = settings.loader.microbatches
    proofs = [*map(_shown, prove(open_loader, steps=steps, hosts=hosts, microbatches=parts))]
    loader = open_loader()
    try:
        for each in shuffle_quality(loader.rows, batch_size=loader.batch_sizes[0][1], hosts=hosts):
            first, *table = map(printable, shuffle_lines(each))
            click.echo("\n".join([f"{'poor' if each.poor else 'ok':<7} shuffle   {first}", *table]))
    except InputError as error:
        click.echo(f"shuffle not measured: {printable(str(error))}")
    return sum(not proof.holds for proof in proofs)


def _shown(proof: Any) -> Any:
    """A proof, printed as soon as it is there."""
    click.echo(f"{'ok     ' if proof.holds else 'FAILED '} {proof.name:<9} {proof.says}")
    return proof


def _check_trainer(trainer: str, settings: "Config") -> int:
    """Print what a trainer does with batches."""
    from jaxdata.base.source_text import function_named
    from jaxdata.config import load
    from jaxdata.testing import trainer_proofs

    loader = load(settings, loader={"num_workers": 0})
    loss, _, update = trainer.partition(",")
    beside = f"{loss.partition(':')[0]}:{update}"
    updates = function_named(beside, "--trainer ") if update else None
    found = trainer_proofs(function_named(loss, "--trainer "), loader, update=updates)
    proofs = [*map(_shown, found)]
    failed = sum(not proof.holds for proof in proofs)
    untold = sum(not proof.tested for proof in proofs)
    not_tested = f", {untold} are not tested" if untold else ""
    held = f"{len(proofs) - untold} checks of the trainer hold"
    lost = f"{failed} of {len(proofs)} checks of the trainer do not hold"
    click.echo(f"{lost if failed else held}{not_tested}")
    return 1 if failed else 0
