"""`jaxdata top RUN`: a training run, live."""

from __future__ import annotations

import sys
import time

import click


@click.command()
@click.argument("run")
@click.option("--once", is_flag=True, help="Print once and end, as where there is no terminal.")
@click.option(
    "--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between."
)
def top(run: str, once: bool, every: float) -> None:
    """Watch a run of `jaxdata train`: loss, tokens a second, waiting, shares against the plan.

    RUN is its folder, the train.output of its config. The command only reads, from any machine that
    sees the folder, and ends with the run or with Ctrl-C.

    \b
        jaxdata top runs/pretrain
    """  # noqa: D301 - \b is a mark of click's
    from rich.console import Console
    from rich.live import Live

    from jaxdata.look.top import LogReader, RunView
    from jaxdata.storage import local_path

    log, view = LogReader(local_path(run, "watch it on the machine where it runs")), RunView(run)
    for record in log.new():
        view.add(record)
    if once or not sys.stdout.isatty():
        Console().print(view)
        return
    with Live(view, auto_refresh=False) as live:
        while not view.ended:
            time.sleep(every)
            for record in log.new():
                view.add(record)
            live.update(view, refresh=True)
