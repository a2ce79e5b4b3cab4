"""A server with data sets, on this machine, that speaks what huggingface_hub asks of the Hub."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Repo = dict[str, bytes]
_ABOUT = re.compile(r"/api/datasets/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<rev>.+))?")
_FILE = re.compile(r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<path>.+)")


class HubServer(ThreadingHTTPServer):
    """`repos` maps (name, revision) to files; a name in `gated` needs the token "hf_secret"."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[tuple[str, str], Repo] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, name: str, files: Repo, revision: str = "main") -> str:
        """Add a data set; returns the id of the commit, by which it is found too."""
        sha = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
        self.repos[name, revision] = self.repos[name, sha] = files
        return sha

    def commit(self, name: str, revision: str) -> str:
        files = self.repos[name, revision]
        known = self.repos.items()
        return next(r for (n, r), some in known if (n, some) == (name, files) and len(r) == 40)


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(f"{self.command} {path}")
        for pattern, answer in ((_ABOUT, self._about), (_FILE, self._file)):
            if found := pattern.fullmatch(path):
                status, headers, body = answer(**found.groupdict())
                break
        else:
            status, headers, body = 404, {}, b""
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _about(self, repo: str, what: str | None, rev: str | None) -> Any:
        revision = unquote(rev or "main")
        if refused := self._refused(repo, revision):
            return refused
        files = self.server.repos[repo, revision]
        listed: Any = [
            {"type": "file", "path": n, "size": len(d), "oid": _id(d)} for n, d in files.items()
        ]
        if what != "tree":
            sha = self.server.commit(repo, revision)
            siblings = [{"rfilename": name} for name in files]
            listed = {"id": repo, "sha": sha, "siblings": siblings, "private": False, "tags": []}
        return 200, {"Content-Type": "application/json"}, json.dumps(listed).encode()

    def _refused(self, repo: str, revision: str) -> Any:
        if repo in self.server.gated and self.headers["Authorization"] != "Bearer hf_secret":
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, b""
        if repo not in {name for name, _ in self.server.repos}:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if (repo, revision) not in self.server.repos:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        return None

    def _file(self, repo: str, rev: str, path: str) -> Any:
        if refused := self._refused(repo, unquote(rev)):
            return refused
        data = self.server.repos[repo, unquote(rev)].get(unquote(path))
        if data is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        commit = self.server.commit(repo, unquote(rev))
        return 200, {"ETag": f'"{_id(data)}"', "X-Repo-Commit": commit}, data

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _id(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def hub_server() -> Iterator[HubServer]:
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
