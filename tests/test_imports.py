"""Which room may import which, and what stays out until it is asked for."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxdata

PACKAGE = Path(jaxdata.__file__).parent

# From the ground up: a room imports only from rooms on lower floors (and from itself).
FLOORS = [
    {"channel", "errors"},
    {"seeds", "processes", "progress"},
    {"tokenizers"},
    {"format"},
    {"convert", "rows"},
    {"feed"},
    {"make"},
    {"train", "look", "testing"},
    {"config"},
    {"demo", "torch", "megatron"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def files() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


def imported(path: Path) -> Iterator[str]:
    """Modules imported anywhere in the file, inside functions too; not for annotations only."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_run_downwards() -> None:
    wrong = []
    for room, path in files():
        if room == "__init__":
            continue
        assert room in FLOOR, f"{room} is in no floor of the house"
        for name in imported(path):
            parts = name.split(".")
            other = parts[1] if parts[0] == "jaxdata" and len(parts) > 1 else room
            if other != room and FLOOR.get(other, -1) >= FLOOR[room]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        (
            "jax",
            {
                "feed/device/attention.py",
                "feed/device/expand.py",
                "feed/device/placement.py",
                "train",
                "demo",
            },
        ),
        ("optax", {"train"}),
        ("orbax", {"train", "feed/checkpoint.py"}),
        ("torch", {"torch.py", "torch"}),
        (
            "grain",
            {
                "rows/datasets.py",
                "rows/pairs.py",
                "feed/loader.py",
                "make/materialize/reading.py",
                "make/stream/iterator.py",
            },
        ),
        ("tensorstore", {"format/storage/remote.py", "format/storage/zarr.py"}),
        (
            "array_record",
            {
                "format/shards.py",
                *(f"make/materialize/{name}.py" for name in ("reading", "shards")),
            },
        ),
        ("sentencepiece", {"tokenizers"}),
        ("tokenizers", {"tokenizers"}),
        ("tiktoken", {"tokenizers"}),
        ("transformers", {"tokenizers"}),
        ("google", {"make/materialize/examples.py"}),
        ("pyarrow", {"convert"}),
        ("jinja2", {"convert/tasks/sandbox.py", "convert/tasks/limits.py"}),
        ("ray", {"convert/engines/cluster.py"}),
        ("ftfy", {"convert"}),
        ("zstandard", {"convert"}),
        ("isal", {"convert"}),
        ("pickle", {"channel.py"}),  # between processes of ours
    ],
)
def test_a_library_is_named_in_its_room_only(library: str, allowed: set[str]) -> None:
    for room, path in files():
        if room not in allowed and path.relative_to(PACKAGE).as_posix() not in allowed:
            named = {name.split(".")[0] for name in imported(path)}
            assert library not in named, f"{path.relative_to(PACKAGE)} imports {library}"


@pytest.mark.parametrize(
    "module", ["jaxdata", "jaxdata.cli", "jaxdata.convert", "jaxdata.rows.dataset"]
)
def test_importing_brings_in_neither_grain_nor_jax(module: str) -> None:
    code = f"import sys, {module}; sys.exit(sorted({{'jax', 'grain', 'torch'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]", done.stderr


def test_the_public_names() -> None:
    assert jaxdata.__all__ == [
        "ArrayDocuments",
        "ConfigError",
        "DatasetError",
        "InputError",
        "JaxdataError",
        "Loader",
        "LoaderRestore",
        "LoaderSave",
        "MissingExtra",
        "Phase",
        "SourceExhausted",
        "StateMismatch",
        "WorkerDied",
        "evaluation_rows",
        "export",
        "load",
        "materialize",
        "mix",
        "open_dataset",
        "open_rows",
        "pack",
        "pairs",
        "stream_text",
    ]
    for name in jaxdata.__all__:
        assert getattr(jaxdata, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'bake'"):
        jaxdata.bake  # noqa: B018


@pytest.mark.parametrize("package", ["jaxdata", "jaxdata.convert"])
def test_type_checkers_see_the_public_names(package: str) -> None:
    """What resolves when first used, and what only they import, are the same objects."""
    module = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__ or "").read_text())
    (only_for_them,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in only_for_them.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names}
    assert seen == module._PUBLIC
    assert sorted(seen) == module.__all__
    assert (PACKAGE / "py.typed").exists()


def modules() -> list[str]:
    found = pkgutil.walk_packages([str(PACKAGE)], "jaxdata.")
    return [module.name for module in found if not module.name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name: str) -> None:
    failures, _ = doctest.testmod(importlib.import_module(name))
    assert not failures


def test_files_and_functions_keep_their_measure() -> None:
    wrong = []
    for _, path in files():
        text = path.read_text()
        if text.count("\n") > 400:
            wrong.append(f"{path.relative_to(PACKAGE)} has {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                documented = len((ast.get_docstring(node, clean=False) or "").splitlines())
                lines = (node.end_lineno or 0) - node.lineno + 1 - documented
                if lines > 45:
                    wrong.append(f"{path.relative_to(PACKAGE)}: {node.name} has {lines} lines")
    assert not wrong
