"""Which checkpoints are whole: checksums of their files, written when one is saved.

They lie in `checksums/`, beside `checkpoints/`. A checkpoint without them is of an earlier version,
or its process was killed just then: it counts as whole, as one whose checksums cannot be read.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from jaxdata.errors import DatasetError


def write_checksums(directory: Path, step: int) -> None:
    """Write those of the checkpoint `directory/<step>`, and remove those of deleted ones."""
    folder, file = directory / str(step), _checksums(directory, step)
    found = {str(path.relative_to(folder)): _sha256(path) for path in _files(folder)}
    file.parent.mkdir(exist_ok=True)
    begun = file.with_suffix(".tmp")
    begun.write_text(json.dumps(found, indent=1))
    begun.replace(file)
    for each in file.parent.glob("*.json"):
        if not (directory / each.stem).exists():
            each.unlink()


def damaged_checkpoints(directory: Path, resume: str) -> list[int]:
    """Steps of the damaged checkpoints that are newer than the newest whole one.

    Args:
        directory: where the checkpoints are.
        resume: "newest-whole" if they may be passed over.

    Raises:
        DatasetError: there are some, and they may not be passed over, or none is whole.
    """
    damaged: dict[int, str] = {}
    for step in _steps(directory):
        if (reason := _damage(directory, step)) is None:
            break
        damaged[step] = reason
    whole = [step for step in _steps(directory) if step not in damaged]
    if damaged and (resume != "newest-whole" or not whole):
        newest = max(damaged)
        advice = "give another train.output to start again"
        if whole:
            advice = f"add --train.resume newest-whole to go on from step {whole[0]}"
        raise DatasetError(
            f"the checkpoint {directory / str(newest)} is damaged: {damaged[newest]}. Restore it, "
            f"or {advice}"
        )
    return sorted(damaged)


def set_aside(directory: Path, steps: list[int]) -> Path:
    """Move checkpoints to `damaged/` beside their folder, where nothing reads them."""
    aside = directory.parent / "damaged"
    aside.mkdir(exist_ok=True)
    for step in steps:
        taken = len(list(aside.glob(f"{step}*")))
        (directory / str(step)).rename(aside / (f"{step}-{taken}" if taken else str(step)))
        _checksums(directory, step).unlink(missing_ok=True)
    return aside


def _steps(directory: Path) -> list[int]:
    """Those of finished checkpoints, newest first."""
    return sorted(int(each.name) for each in directory.glob("*") if each.name.isdigit())[::-1]


def _damage(directory: Path, step: int) -> str | None:
    folder = directory / str(step)
    try:
        written = json.loads(_checksums(directory, step).read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    for name, sha256 in written.items() if isinstance(written, dict) else ():
        if not (folder / name).is_file():
            return f"its file {name} is missing"
        if _sha256(folder / name) != sha256:
            return f"its file {name} is not as it was written"
    return None


def _checksums(directory: Path, step: int) -> Path:
    return directory.parent / "checksums" / f"{step}.json"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
