"""What a mirror has copied so far, kept beside it until it is whole."""

from __future__ import annotations

import json
import time

from jaxdata.errors import DatasetError, InputError
from jaxdata.format.checksums import decode_json
from jaxdata.format.manifest import MANIFEST, Manifest, SourceEntry, read_manifest
from jaxdata.format.mirroring.mirror_parts import Part
from jaxdata.format.storage import Store

_FOLDER = ".mirror"
_OF = f"{_FOLDER}/{MANIFEST}"
_DONE = f"{_FOLDER}/done.json"
_SECONDS = 2.0
"""between notes; what was copied since the last is compared after a kill"""


class MirrorJournal:
    """The parts that a mirror has, by their checksums."""

    def __init__(self, target: Store) -> None:
        self._target = target
        self._done = _read(target)
        self._noted = time.monotonic()

    def begin(self, manifest: bytes) -> None:
        """Say what is being copied."""
        self._target.write(_OF, manifest)

    def has(self, part: Part) -> bool:
        """Whether a part was copied before."""
        return self._done.get(part.name) == part.checksum

    def add(self, part: Part) -> None:
        """Note a part, soon."""
        self._done[part.name] = part.checksum
        if time.monotonic() - self._noted > _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Note all parts now."""
        self._target.write(_DONE, json.dumps(self._done).encode())
        self._noted = time.monotonic()

    def end(self) -> None:
        """Nothing is left to do."""
        self._target.delete(f"{_FOLDER}/")


def _read(target: Store) -> dict[str, str]:
    try:
        found = json.loads(target.read(_DONE, None) or b"{}")
    except (ValueError, RecursionError):
        return {}  # all is compared
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def check_target(target: Store, manifest: Manifest, source: str) -> None:
    """Refuse to write over anything but an earlier, a damaged or a begun mirror of the dataset.

    Raises:
        InputError: something else is there.
    """
    begun = target.read(_OF)
    if begun is None and target.read(MANIFEST) is None:
        others = [name for name in target.list() if name != ".lease"]
        if others:
            raise InputError(
                f"{target.url} is not empty, and no mirror ({others[0]} is there): name a folder "
                "that is empty or does not exist"
            )
        return
    if target.read(MANIFEST) is not None:
        _compare(target, _read_manifest(target), manifest, source)
    if begun is not None:
        _compare(target, decode_json(begun, f"{target.url}/{_OF}", Manifest), manifest, source)


def _read_manifest(target: Store) -> Manifest:
    try:
        return read_manifest(target)
    except DatasetError as error:
        raise InputError(
            f"{error}. What it is of cannot be told: delete that file, if it is a mirror, and run "
            "the same command again"
        ) from None


def _compare(target: Store, there: Manifest, manifest: Manifest, source: str) -> None:
    """Refuse a manifest that is not of this dataset, as it is or as it was."""
    same = there.tokenizer == manifest.tokenizer and there.dtype == manifest.dtype
    other = [
        name
        for name, entry in there.sources.items()
        if name not in manifest.sources or not _was(entry, manifest.sources[name])
    ]
    if other or not same:
        what = f"its {other[0]} is another" if other else "its tokenizer is another"
        raise InputError(
            f"{target.url} holds another dataset than {source} ({what}): name an empty folder, or "
            "delete that one"
        )


def _was(entry: SourceEntry, now: SourceEntry) -> bool:
    """Whether a source is the same, or one that documents were since appended to; views aside."""
    generation = len(entry.generations)
    if generation > len(now.generations):
        return False
    return now.at(generation).model_copy(update={"views": entry.views}) == entry
