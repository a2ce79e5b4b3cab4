"""Which room may import which, what stays out until it is asked for, how far a reader walks."""

from __future__ import annotations

import ast
import cProfile
import doctest
import gc
import importlib
import inspect
import pkgutil
import re
import runpy
from collections.abc import Callable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import jaxdata
import jaxdata.testing
from jaxdata.testing import distinct_documents, write_dataset
from tests.commands import python
from tests.test_numbers import public

PACKAGE = Path(jaxdata.__file__).parent
TESTS = Path(__file__).parent
lines_of_code = runpy.run_path(str(TESTS.parent / "tools" / "house.py"))["lines_of_code"]

# From the ground up: a room imports only from rooms on lower floors (and from itself).
FLOORS = "base / storage / tokenizers / dataset / converter / dedup / rows / feed / "
FLOORS += "foreign streaming testing / config / look / torch train / clients / cli / __main__"
FLOOR = {room: n for n, floor in enumerate(FLOORS.split(" / ")) for room in floor.split()}


@cache
def files() -> list[tuple[str, Path]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path) for path in paths]


@cache
def imported(path: Path, *, annotations: bool = True) -> frozenset[str]:
    """Modules imported anywhere in the file, inside functions and for annotations too."""
    tree, found = ast.parse(path.read_text()), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = node.body if annotations else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # Of the facade, what is taken from it counts.
            found |= {node.module} - {"jaxdata"} | {f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "extra_module":
            found.add(ast.literal_eval(node.args[1]))
    return frozenset(found)


def test_imports_run_downwards() -> None:
    wrong = []
    for room, path in files():
        if room == "__init__":
            continue
        assert room in FLOOR, f"{room} is in no floor of the house"
        for name in imported(path):
            library, *inside = name.split(".")
            if library != "jaxdata" or inside[:1] == [room]:
                continue
            # The facade, and what it resolves, lies above all rooms.
            if not inside or FLOOR.get(inside[0], len(FLOOR)) >= FLOOR[room]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not wrong


def test_the_readme_draws_the_house_from_the_ground_up() -> None:
    house = (TESTS.parent / "README.md").read_text().partition("## The house")[2]
    rooms = re.findall(r"\[(\w+)\]\(jaxdata/\1/README\.md\)", house)
    assert set(rooms) == {path.parent.name for path in PACKAGE.glob("*/README.md")}
    assert [FLOOR[room] for room in rooms] == sorted(FLOOR[room] for room in rooms)


def module_of(path: Path) -> str:
    names = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def test_no_circle_between_files() -> None:
    known = {module_of(path): path for _, path in files()}
    graph = {
        module: known.keys() & imported(path) - {module, module.rpartition(".")[0]}
        for module, path in known.items()
    }
    del graph["jaxdata"]  # the facade
    TopologicalSorter(graph).prepare()  # a CycleError names the files


LIBRARIES = {
    "jax": "feed/device.py train clients",
    "optax": "train",
    "orbax": "train feed/checkpoint.py",
    "torch": "torch clients",
    "grain": "clients/maxtext.py rows/map_datasets.py rows/pairs.py feed/loader.py "
    "foreign/materialize.py streaming/api.py",
    "obstore": "storage/client.py storage/credentials.py",
    "tensorstore": "",  # Orbax brings it; it aborts in a forked child
    "array_record": "dataset/index.py foreign/materialize.py",
    "sentencepiece": "tokenizers",
    "tokenizers": "tokenizers",
    "tiktoken": "tokenizers",
    "transformers": "tokenizers clients",
    "google": "foreign/record_formats.py",
    "pyarrow": "converter/inputs dataset/views",
    "jinja2": "converter/chat look/report/page.py",
    "ray": "converter/engines/ray.py",
    "ftfy": "converter/filters.py",
    "zstandard": "converter/inputs/streams.py",
    "isal": "converter/inputs converter/changes.py",
    "pickle": "base/processes.py feed/workers.py",  # between processes of ours
    "mmap": "storage/local.py",  # its maps keep descriptors; ours do not
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_named_in_its_room_only(library: str) -> None:
    allowed = set(LIBRARIES[library].split())
    for _, path in files():
        place = path.relative_to(PACKAGE)
        if not {place.as_posix(), *(room.as_posix() for room in place.parents)} & allowed:
            named = {name.split(".")[0] for name in imported(path, annotations=False)}
            assert library not in named, f"{path.relative_to(PACKAGE)} imports {library}"


def test_importing_brings_in_neither_grain_nor_jax() -> None:
    rooms = "jaxdata, jaxdata.cli, jaxdata.converter.conversion, jaxdata.converter.worker, "
    rooms += "jaxdata.dataset.opening"
    code = f"import sys, {rooms}; print(sorted({{'jax', 'grain', 'torch'}} & set(sys.modules)))"
    assert python("-c", code).stdout == "[]\n"


PUBLIC = """
ArrayDocuments ConfigError DatasetError InputError JaxdataError Loader LoaderRestore LoaderSave
MissingExtra Phase SourceExhausted StateMismatch WeightsFile WorkerDied convert deduplicate
evaluation_rows export load losses_by_source materialize mix open_dataset open_rows pack pairs
select show_batch stream_text
"""


def test_the_public_names() -> None:
    assert jaxdata.__all__ == PUBLIC.split()
    for name in jaxdata.__all__:
        assert getattr(jaxdata, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'bake'"):
        jaxdata.bake  # noqa: B018


MODULES = {"megatron", "testing", "tokenizers", "torch"}
RETURNED = {"MissingExtra", "testing.Proof", "testing.ShuffleQuality"}
"""what functions raise and return, and nobody else makes"""
NO_PARAMETERS = {"self", "args", "kwargs", "_", "__"}


def test_every_public_parameter_has_its_line() -> None:
    """In `Args`, and there is no other line; of a method, it is named."""
    wrong = []
    testing = [(f"testing.{n}", getattr(jaxdata.testing, n)) for n in jaxdata.testing.__all__]
    for name, door in [*public(), *testing]:
        try:
            parameters = {*inspect.signature(door).parameters} - NO_PARAMETERS
        except (TypeError, ValueError):  # an exception, or a class of grain's
            parameters = set()
        documented = inspect.getdoc(door) or ""
        args = re.search(r"^Args:\n((?: {4}.*\n?|\n(?= {4}))*)", documented, re.MULTILINE)
        lines = {*re.findall(r"^ {4}\**(\w+): ", args[1], re.MULTILINE)} if args else set()
        method = "." in name and name.rpartition(".")[0] not in MODULES
        for each in parameters if name not in RETURNED else ():
            if not (re.search(rf"\b{each}s?\b", documented) if method else each in lines):
                wrong.append(f"{name}: {each} lacks its line")
        wrong += [f"{name}: {each} is no parameter" for each in lines - parameters]
    assert not wrong


def test_every_public_name_has_an_example() -> None:
    """On its page of the site; a constant has none."""
    without = []
    for room in ("", ".testing", ".tokenizers", ".torch"):
        module = importlib.import_module(f"jaxdata{room}")
        named = {name: getattr(module, name) for name in module.__all__}
        found = {name: inspect.getdoc(one) or "" for name, one in named.items() if callable(one)}
        without += [f"{room}.{name}" for name, text in found.items() if ">>>" not in text]
    assert not without


def test_no_module_shadows_a_public_name() -> None:
    """Importing a module sets its name in the package above it, over a function of that name."""
    wrong = []
    for package in ["jaxdata", *modules()]:
        public = set(getattr(importlib.import_module(package), "__all__", []))
        wrong += [name for name in modules() if name in {f"{package}.{each}" for each in public}]
    assert not wrong


@pytest.mark.parametrize("package", ["jaxdata", "jaxdata.converter"])
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


@cache
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
        if (lines := len(lines_of_code(text))) > 400:
            wrong.append(f"{path.relative_to(PACKAGE)} has {lines} lines of code")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):  # what it does, whatever it is given
                documented = ast.get_docstring(node) is not None and len(node.body) > 1
                lines = (node.end_lineno or 0) - node.body[documented].lineno + 1
                if lines > 45:
                    wrong.append(f"{path.relative_to(PACKAGE)}: {node.name} has {lines} lines")
    assert not wrong


def test_folders_keep_their_measure() -> None:
    for root in (PACKAGE, TESTS):
        for folder in {path.parent for path in root.rglob("*.py")}:
            beside = [path for path in folder.iterdir() if path.is_file()]
            assert len(beside) <= 20, f"{folder} has {len(beside)} files"


def entered(work: Callable[[], object]) -> list[str]:
    """The files of the package whose functions `work` calls."""
    profile = cProfile.Profile()
    gc.collect()
    gc.disable()  # else it may close here what earlier tests left open
    try:
        profile.runcall(work)
    finally:
        gc.enable()
    found = {getattr(each.code, "co_filename", "") for each in profile.getstats()}
    return sorted(file for file in found if file.startswith(str(PACKAGE)))


def test_a_batch_of_a_mixture_is_a_short_walk(tmp_path: Path) -> None:
    """How far a reader has to walk; index and shards are opened when first read."""
    documents, names = distinct_documents([100, 30, 7, 60] * 50), ("web", "code")
    dataset = write_dataset(tmp_path, {f"train/{name}": documents for name in names})
    rows = {name: jaxdata.pack(dataset.source("train", name), seq_len=64) for name in names}
    mixed = jaxdata.mix(rows, weights={"web": 0.7, "code": 0.3})
    loader = jaxdata.Loader(mixed, batch_size=4, num_workers=0, prefetch=0)
    walks = [entered(lambda: next(loader)) for _ in range(4)]
    assert len(walks[0]) <= 20, "\n".join(walks[0])
    # Batches are planned in groups: the second begins a group of two, the third is in it.
    assert len(walks[2]) <= 8, "\n".join(walks[2])
