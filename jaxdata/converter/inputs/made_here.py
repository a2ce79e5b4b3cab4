"""What this package made is no input: the output, datasets and runs among texts, the cache."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress

from jaxdata.format.storage import cache_root

_log = logging.getLogger("jaxdata")
_MANIFESTS = ("dataset.json", "rows.json")
_LOG = "log.jsonl"
_FORMAT = "jaxdata"
"""what the format of a manifest begins with"""
IS_DATASET = (
    "is a dataset that jaxdata made, not text: give the files that it was made of; to add it to a "
    "mixture, name it in the config"
)
"""what is said of an input"""


class MadeHere:
    """Tells folders apart that are searched for texts; each that is left out is logged once.

    Args:
        output: where the conversion writes; None for nowhere.
        read: gives the content of a file, or None.
    """

    def __init__(
        self, output: str | os.PathLike[str] | None, read: Callable[[str], bytes | None]
    ) -> None:
        self._output = None if output is None else _absolute(os.fspath(output))
        self._read = read

    def is_left_out(self, folder: str, names: set[str]) -> bool:
        """Whether a folder that holds these files is the output, a dataset or a training run."""
        places = {str(cache_root().absolute()): "the cache", self._output: "the output"}
        if place := places.get(_absolute(folder)):
            _log.warning("%s is left out of the inputs: it is %s", folder, place)
            return True
        kind = "dataset" if self.is_dataset(folder, names) else "run"
        if left_out := kind == "dataset" or self._is_run(folder, names):
            _log.warning("%s is left out of the inputs: it is a %s of jaxdata", folder, kind)
        return left_out

    def _is_run(self, folder: str, names: set[str]) -> bool:
        """Whether its log begins as `jaxdata train` begins one."""
        if _LOG not in names:
            return False
        with suppress(ValueError, AttributeError, RecursionError, OSError):
            first = json.loads((self._read(f"{folder}/{_LOG}") or b"").partition(b"\n")[0])
            return bool(first.get("event") == "start" and {"step", "backend"} <= first.keys())
        return False

    def is_dataset(self, folder: str, names: set[str]) -> bool:
        """Whether a folder that holds these files is a dataset, or rows."""
        return any(self._is_ours(f"{folder}/{name}") for name in _MANIFESTS if name in names)

    def _is_ours(self, manifest: str) -> bool:
        with suppress(ValueError, AttributeError, RecursionError, OSError):
            found = json.loads(self._read(manifest) or b"null")
            return str(found.get("format")).startswith(_FORMAT)
        return False


def _absolute(path: str) -> str:
    return path.rstrip("/") if "://" in path else os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111
