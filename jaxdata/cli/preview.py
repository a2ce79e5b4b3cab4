"""`jaxdata preview CONFIG`: what a run will get, and whether it is feasible."""

from jaxdata import look
from jaxdata.base.settings import setting
from jaxdata.cli.config import Given, RunCommand
from jaxdata.cli.options import JSON, command
from jaxdata.look.terminal import show


@command(
    cls=RunCommand,
    takes="CONFIG",
    epilog="Exit code 0 if the run is feasible as configured, 1 if it is not; with --hosts also 1 "
    "if storage.cache.bytes cannot hold what a host has open.",
)
def preview(
    given: Given,
    state: str | None = setting(
        None,
        "Judge the rest of a run under way, with the batch sizes that it had so far: a loader's "
        "state, a checkpoint, or the run's folder.",
        metavar="PATH",
    ),
    hosts: int | None = setting(
        None,
        "Also say what reading the run from a bucket costs so many hosts: requests, bytes, cache.",
        ge=1,
    ),
    as_json: bool = JSON,
) -> int:
    """Plan a run, keep the plan, and show what the run will get, to the token.

    For each phase and source: the share asked for and the share planned, tokens (targets with
    loss), rows, epochs, and the row at which the source runs dry; what packing pads and drops;
    whether the trainer's steps match the curriculum; and whether the dataset is intact. Only
    document lengths are read. The plan is stored beside the data: hosts that start later reuse it.

    \b
        jaxdata preview --config pretrain.yaml --epochs '{wiki: 4}'
        jaxdata preview --config pretrain.yaml --hosts 64 --loader.batch_size 512
    """  # noqa: D301 - \b is a mark of click's
    found = look.preview.foretell(given.settings(), state, hosts=hosts)
    show(look.preview.preview_lines(found), {"config": given.config, **found}, as_json=as_json)
    return 0 if found["ok"] else 1
