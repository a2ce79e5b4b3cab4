"""Objects in the memory of this process, as `memory://` names them; for tests."""

from __future__ import annotations

from collections.abc import Iterator

from jaxdata.storage.kvstores import open_kvstore
from jaxdata.storage.objects.contract import Facts, changed

_ROOT = "memory://"


class Memory:
    """See `Place`. Other processes, as workers are, do not see these objects."""

    def look(self, url: str) -> Facts | None:
        found = open_kvstore(_ROOT[:-1]).read(url.removeprefix(_ROOT)).result()
        if found.state == "missing":
            return None
        return Facts(len(found.value), found.stamp.generation.hex())

    def listed(self, prefix: str) -> Iterator[tuple[str, Facts]]:
        for key in sorted(open_kvstore(_ROOT[:-1]).list().result()):
            url = _ROOT + key.decode()
            if url.startswith(prefix) and (facts := self.look(url)):
                yield url, facts

    def read(self, url: str, start: int, stop: int, tag: str) -> bytes:
        found = open_kvstore(_ROOT[:-1]).read(url.removeprefix(_ROOT)).result()
        if found.state == "missing" or found.stamp.generation.hex() != tag:
            raise changed(url)
        part: bytes = found.value[start:stop]
        return part
