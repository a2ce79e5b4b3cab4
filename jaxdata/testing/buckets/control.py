"""What a server tells of itself, and is told, over HTTP: any process can look, and switch."""

from __future__ import annotations

import json
from dataclasses import asdict
from urllib.parse import unquote

from jaxdata.testing.buckets.faults import Draws, Faults
from jaxdata.testing.buckets.http_messages import Request, Response
from jaxdata.testing.buckets.objects import Objects
from jaxdata.testing.buckets.request_log import RequestLog

PREFIX = "/-/"
"""no bucket is called so"""


class Control:
    """The requests below `/-/`; neither counted nor subject to faults.

    Args:
        objects: what is served; None where that is in another server.
    """

    def __init__(self, objects: Objects | None) -> None:
        self._objects = objects
        self.log = RequestLog()
        self.draws = Draws()

    def answer(self, request: Request) -> Response | None:
        """The response; None for a request to the buckets themselves."""
        if not request.path.startswith(PREFIX):
            return None
        what, _, name = unquote(request.path.removeprefix(PREFIX)).partition("/")
        try:
            return _json(self._said(request.method, what, name, request.body))
        except LookupError:
            return Response(404, f"there is no {what}/{name}".encode())
        except (TypeError, ValueError) as error:
            return Response(400, str(error).encode())

    def _said(self, method: str, what: str, name: str, body: bytes) -> object:
        match method, what:
            case "GET", "requests":
                return [asdict(one) for one in self.log.served]
            case "GET", "counts":
                return asdict(self.log.counts())
            case "DELETE", "requests":
                self.log.clear()
            case "GET", "faults":
                return [asdict(each) for each in self.draws.faults]
            case "PUT", "faults":
                self.draws = Draws([Faults(**each) for each in json.loads(body)])
            case _, "names" | "objects":
                return self._about_objects(method, what, name, body)
            case _:
                raise LookupError(what)
        return None

    def _about_objects(self, method: str, what: str, name: str, body: bytes) -> object:
        if self._objects is None:
            raise ValueError("the objects belong to the server behind this proxy: ask that one")
        if what == "names":
            return self._objects.names(name)
        if method == "PUT":
            return self._objects.write(name, body).generation
        if method == "DELETE":
            self._objects.delete(name)
            return None
        entry = self._objects.stat(name)
        if entry is None:
            raise LookupError(name)
        return self._objects.read(name, 0, entry.size)


def _json(value: object) -> Response:
    """As JSON, or as it is where it is bytes."""
    return Response(200, value if isinstance(value, memoryview) else json.dumps(value).encode())
