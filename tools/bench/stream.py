"""Text streamed as it is, against converting it once and loading what came of it.

A pass is every batch of one epoch: streaming reads and tokenizes for it, loading does not. From
the figures follows when converting pays: it takes its seconds once, each later pass saves the
difference.
"""

import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from convert import ours, sample, specs
from harness import Contestant, Report, arguments, chosen, compare, machine, now, parse

import jaxdata
from jaxdata.base.processes import available_cores
from jaxdata.converter import convert

SEQ_LEN, BATCH = 1024, 32
LOADED = "a pass over what was converted"


def passed(batches: Callable[[], Iterable[Any]], only_first: bool = False) -> Callable[[], float]:
    """Seconds of opening something and taking its batches."""

    def work() -> float:
        begin = now()
        opened = batches()
        for _ in opened:
            if only_first:
                break
        seconds = now() - begin
        opened.close()  # type: ignore[attr-defined]
        return seconds

    return work


def loader(folder: Path) -> jaxdata.Loader:
    """Batches of the converted text."""
    documents = jaxdata.open_dataset(folder).source("train", "web")
    return jaxdata.Loader(jaxdata.pack(documents, seq_len=SEQ_LEN), batch_size=BATCH)


def main() -> None:
    """Stream, convert and load in turns."""
    given = parse(arguments(__doc__ or ""))
    warnings.simplefilter("ignore")
    files = sample(given.data, given.quick, everything=False)
    kind, spec = next(iter(specs().items())) if not given.quick else ("bytes", "bytes")
    folder = Path(tempfile.mkdtemp(prefix="jaxdata-bench-"))
    report_of = convert(files, output=folder, source="web", tokenizer=spec)
    stream = partial(jaxdata.stream_text, files, tokenizer=spec, seq_len=SEQ_LEN, batch_size=BATCH)
    cores = available_cores()
    contestants = [
        Contestant(LOADED, passed(partial(loader, folder)), threads=True),
        Contestant("convert, all cores", ours(spec, files, cores), LOADED, threads=True),
        Contestant("stream_text, no workers", passed(partial(stream, num_workers=0)), LOADED),
        Contestant("stream_text", passed(stream), LOADED, threads=True),
        Contestant("stream_text: to its first batch", passed(stream, True), LOADED, threads=True),
    ]
    facts = machine(kind) | {"tokenizer": kind, "tokens": report_of.tokens, "cores": cores}
    facts |= {"megabytes": round(report_of.text_bytes / 1e6, 1)}
    report = Report("stream", "Text as it is, or converted", "seconds", "less", facts=facts)
    turns = {"rounds": min(given.rounds, 3), "seconds": min(given.seconds, 0.01), "timed": True}
    compare(report, chosen(contestants, given.only), **turns).show(given.json)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
