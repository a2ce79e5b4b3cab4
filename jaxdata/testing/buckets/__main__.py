"""A server of buckets for other programs: prints the environment that leads them to it.

python -m jaxdata.testing.buckets --scheme gs --latency 0.03
"""

from __future__ import annotations

import argparse
import signal
from contextlib import AbstractContextManager, suppress
from dataclasses import fields

from jaxdata.base.processes import hold_on
from jaxdata.testing.buckets.faults import Faults
from jaxdata.testing.buckets.server import PROTOCOLS, BucketServer
from jaxdata.testing.buckets.serving import bucket_server, fault_proxy


def main() -> None:
    """Serve until Ctrl-C, a signal, or the end of the process that started it."""
    parser = make_parser()
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt), _served(given) as server:
            _show(server)
            if given.lifeline:
                hold_on(given.lifeline)
            while True:
                signal.pause()
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _served(given: argparse.Namespace) -> AbstractContextManager[BucketServer]:
    faults = Faults(**{each.name: getattr(given, each.name) for each in fields(Faults)})
    if given.upstream:
        return fault_proxy(given.upstream, given.scheme, faults=faults, port=given.port)
    return bucket_server(given.scheme, folder=given.folder, faults=faults, port=given.port)


def _show(server: BucketServer) -> None:
    lines = [f"# {server.address}"]
    lines += [f"export {name}={value}" for name, value in server.env.items()]
    print("\n".join(lines), flush=True)


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        "python -m jaxdata.testing.buckets", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--scheme", choices=tuple(PROTOCOLS), default="gs")
    parser.add_argument("--folder", help="where objects are, as files <bucket>/<name> (memory)")
    parser.add_argument("--upstream", help="be a proxy of this server: http://<host>:<port>")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1 (a free one)")
    parser.add_argument("--lifeline", type=int, help=argparse.SUPPRESS)
    for each in fields(Faults):
        parser.add_argument(
            f"--{each.name}", type=type(each.default), default=each.default, metavar=str(each.type)
        )
    return parser


if __name__ == "__main__":
    main()
