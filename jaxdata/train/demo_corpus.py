"""Real text found on any machine with Python: its library and manual, licences and READMEs.

Source files are read and parsed, not imported. The order of the documents and the choice of the
held-out ones depend only on the installed files.
"""

import ast
import hashlib
import json
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

Document = tuple[str, str]  # name, text

_VALIDATION_EVERY = 50
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"}
_PAPERS = ("METADATA", "LICEN", "COPYING", "NOTICE", "AUTHORS", "README", "CHANGE", "HISTORY")


@dataclass
class Gathered:
    """Counts of one source."""

    train_documents: int = 0
    val_documents: int = 0
    characters: int = 0


def gather(output: Path, max_characters: int) -> dict[str, Gathered]:
    """Write `output/<split>/<source>.jsonl` for every source with text.

    The first document, and one in 50 by its hash, goes to split `val`.

    A source ends after `max_characters`. Returns its counts by name.
    """
    library = Path(sysconfig.get_path("stdlib"))
    sources = {
        "code": _source_files(library),
        "docs": _documentation(library),
        "meta": _package_papers(Path(sysconfig.get_path("purelib"))),
    }
    found = {name: _write(output, name, texts, max_characters) for name, texts in sources.items()}
    return {name: counts for name, counts in found.items() if counts.train_documents}


def _write(output: Path, name: str, documents: Iterable[Document], limit: int) -> Gathered:
    counts, seen = Gathered(), set[bytes]()
    with ExitStack() as stack:
        files = {}
        for split in ("train", "val"):
            path = output / split / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            files[split] = stack.enter_context(path.open("w", encoding="utf-8"))
        for title, text in documents:
            digest = hashlib.sha256(text.encode()).digest()
            if digest in seen:
                continue
            seen.add(digest)
            held_out = len(seen) == 1 or int.from_bytes(digest[:8]) % _VALIDATION_EVERY == 0
            record = json.dumps({"name": title, "text": text})
            files["val" if held_out else "train"].write(f"{record}\n")
            counts.val_documents += held_out
            counts.train_documents += not held_out
            counts.characters += len(text)
            if counts.characters >= limit:
                break
    return counts


def _source_files(library: Path) -> Iterator[Document]:
    """Every module of the standard library, without its tests."""
    for path in sorted(library.rglob("*.py")):
        inside = path.relative_to(library)
        if not _NOT_LIBRARY.intersection(inside.parts) and (text := _read(path)).strip():
            yield inside.as_posix(), text


def _documentation(library: Path) -> Iterator[Document]:
    """The texts of `help("topics")`, then every multi-line docstring of the library."""
    yield from topics.items()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for place, source in _source_files(library):
        module = place.removesuffix(".py").replace("/", ".")
        try:
            with warnings.catch_warnings(action="ignore"):
                nodes = list(ast.walk(ast.parse(source)))
        except (SyntaxError, ValueError):  # of another version of Python
            continue
        for node in nodes:
            text = (isinstance(node, documented) and ast.get_docstring(node)) or ""
            if "\n" in text:
                name = f"{module}.{getattr(node, 'name', '')}".rstrip(".")
                yield name, f"{name}\n\n{text}"


def _package_papers(packages: Path) -> Iterator[Document]:
    """Licences, descriptions and changelogs of installed packages."""
    for path in sorted(packages.rglob("*")):
        is_paper = path.name.upper().startswith(_PAPERS) or path.suffix in (".md", ".rst")
        is_paper &= path.suffix not in (".py", ".pyc", ".json") and path.is_file()
        if is_paper and (text := _read(path)).strip():
            yield path.relative_to(packages).as_posix(), text


def _read(path: Path) -> str:
    """The text of a file; empty if it is not UTF-8 or unreadable."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
