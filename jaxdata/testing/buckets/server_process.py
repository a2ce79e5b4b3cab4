"""A server of buckets in a process of its own, so that it takes no time from what is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jaxdata.base.processes import lifeline
from jaxdata.testing.buckets.faults import Faults
from jaxdata.testing.buckets.server import BucketServer, Scheme


@contextmanager
def bucket_process(
    scheme: Scheme = "gs",
    *,
    folder: str | Path | None = None,
    upstream: str | None = None,
    faults: Faults | Sequence[Faults] = (),
) -> Iterator[BucketServer]:
    """As `bucket_server`, or with `upstream` as `fault_proxy`, but in another process.

    Args:
        scheme: "gs" or "s3".
        folder: where objects are, as files `<bucket>/<name>`; None for memory.
        upstream: address of the server that it is a proxy of; None for none.
        faults: what goes wrong at first.

    Raises:
        RuntimeError: it did not start; it has said why.
    """
    child, parent = lifeline()
    words = ["--scheme", scheme, "--lifeline", str(child)]
    words += ["--folder", str(folder)] if folder else []
    words += ["--upstream", upstream] if upstream else []
    command = [sys.executable, "-m", "jaxdata.testing.buckets", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[child]) as process:
        os.close(child)
        with parent:  # closing it ends the process
            address = process.stdout.readline().removeprefix("#").strip() if process.stdout else ""
            if not address:
                raise RuntimeError("the server of buckets did not start: see what it printed")
            server = BucketServer(scheme, address)
            server.faults = faults
            yield server
