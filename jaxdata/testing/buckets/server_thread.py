"""An event loop that serves buckets, in a thread of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from threading import Event, Thread

from jaxdata.testing.buckets.control import Control
from jaxdata.testing.buckets.proxy import Answer, FaultProxy


class ServerThread:
    """Serves until it is closed.

    Args:
        answer: makes the responses.
        control: answers what is about the server itself, and holds its log and its faults.
        port: of 127.0.0.1; 0 for a free one.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, answer: Answer, control: Control, port: int = 0) -> None:
        self.address = ""
        self._failed: OSError | None = None
        self._ready = Event()
        self._loop = asyncio.new_event_loop()
        self._proxy = FaultProxy(answer, control)
        self._thread = Thread(target=self._run, args=(port,), name="jaxdata-buckets", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failed:
            raise self._failed

    def close(self) -> None:
        """End it, and its connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self, port: int) -> None:
        try:
            server = self._loop.run_until_complete(self._proxy.serve(port))
            self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._loop.call_soon(self._ready.set)
            self._loop.run_forever()
            server.close()
            self._loop.run_until_complete(_cancelled(asyncio.all_tasks(self._loop)))
        except OSError as error:
            self._failed = error
            self._ready.set()
        finally:
            self._loop.close()


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
