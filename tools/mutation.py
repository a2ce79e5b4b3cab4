"""Break the code at random places and count how often a room's own tests notice.

    pip install -e '.[test,dev]'
    python tools/mutation.py rows packing --mutants 60 --seed 1
    python tools/mutation.py --table tests/README.md          # every room of the table

Places come from cosmic-ray's operators (comparisons, arithmetic, numbers, and/or, not, loops,
exceptions, decorators) and one of our own: a call whose result nobody takes is dropped. A seed
draws the places, then one change at each. Changes of annotations do not count, nor do those of
`strict=`, `frozen=` and abstract methods. Each mutant runs in
a process forked from one that has imported the test tools, on a copy of the tree: first the tests
that run its line, the quickest first, then all quick ones of the room.
"""

import argparse
import ast
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import hypothesis  # noqa: F401  # imported here, it is there in every fork
import numpy  # noqa: F401  # idem
import parso
import pytest
from cosmic_ray.ast import Visitor, ast_nodes, get_ast
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parent.parent
ROOMS: dict[str, tuple[str, str]] = {
    "rows": ("jaxdata/rows/*.py", "tests/rows/test_*.py tests/rows/packing/test_evaluation.py"),
    "packing": ("jaxdata/rows/packing", "tests/rows/packing"),
    "mixing": ("jaxdata/rows/mixing", "tests/rows/mixing"),
    "feed": ("jaxdata/feed", "tests/feed tests/storage/pages/test_cached_runs.py"),
    "documents": (
        "jaxdata/dataset/*documents.py jaxdata/dataset/opening.py",
        "tests/dataset/documents/test_contract*.py tests/dataset/documents/test_d*.py "
        "tests/dataset/documents/test_functions.py",
    ),
    "views": ("jaxdata/dataset/views", "tests/dataset/views"),
    "format": (
        "jaxdata/dataset/[imrvl]*.py",
        "tests/dataset/test_*.py tests/damage/test_manifests.py",
    ),
    "pages": ("jaxdata/storage/pages", "tests/storage/pages"),
    "foreign": (
        "jaxdata/dataset/foreign",
        "tests/dataset/documents/test_foreign*.py tests/foreign/test_export.py",
    ),
    "converter": (
        "jaxdata/converter/*.py",
        "tests/converter/test_*.py tests/converter/decisions tests/dedup/test_kept_hashes.py",
    ),
    "inputs": ("jaxdata/converter/inputs", "tests/converter/inputs"),
    "tasks": ("jaxdata/converter/tasks", "tests/converter/tasks"),
    "encoders": (
        "jaxdata/tokenizers/encoders",
        "tests/tokenizers/test_encoders.py tests/tokenizers/test_words.py",
    ),
    "dedup": ("jaxdata/dedup jaxdata/base/hashing.py", "tests/dedup tests/base"),
}
"""room: where it is broken, and the tests that are to notice"""
TAKEN = {"Is": {"IsNot"}, "IsNot": {"Is"}, "Eq": {"NotEq"}, "NotEq": {"Eq"}}
"""of comparisons, the changes that mean another thing for any operand"""
LEFT_OUT = r"VariableReplacer|VariableInserter|_Pow|_BitXor|ReplaceUnaryOperator_\w+_UAdd"
GUARDS = {"abstractmethod", "frozen", "strict"}
"""arguments and decorators that refuse code which nobody wrote: without them nothing changes"""
LIMIT = 120
"""seconds for a mutant: one that loops is killed, and counted so"""


class DropCall(Operator):
    """Replace a statement that only calls something by `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type in ("power", "atom_expr") and node.parent.type in ("simple_stmt", "expr_stmt"):
            last = node.children[-1]
            if node.parent.type == "simple_stmt" and last.type == "trailer":
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, _: int) -> Any:
        return parso.python.tree.Keyword(
            "pass", node.start_pos, prefix=node.get_first_leaf().prefix
        )

    @classmethod
    def examples(cls) -> tuple[Any, ...]:
        return ()


class Mutant(NamedTuple):
    """One change of one file."""

    path: str
    line: int
    name: str
    """of the operator"""
    code: str
    """of the whole file, changed"""

    def show(self, root: Path) -> str:
        """The line before and after."""
        before, after = (text.splitlines() for text in ((root / self.path).read_text(), self.code))
        here = next(
            n for n, pair in enumerate(zip(before, after, strict=False)) if len({*pair}) > 1
        )
        change = f"    - {before[here].strip()}\n    + {after[here].strip()}"
        return f"{self.path}:{here + 1} {self.name}\n{change}"


def operators() -> dict[str, Operator]:
    """By name, those whose changes are seldom the same code in other words."""
    found: dict[str, Operator] = {"DropCall": DropCall()}
    for name in operator_names():
        short = name.removeprefix("core/")
        comparison = re.fullmatch(r"ReplaceComparisonOperator_(\w+)_(\w+)", short)
        if comparison and comparison[2] not in TAKEN.get(comparison[1], {"Lt", "LtE", "Gt", "GtE"}):
            continue
        if not re.search(LEFT_OUT, short):
            found[short] = get_operator(name)()
    return found


class _Once(Visitor):
    def __init__(self, operator: Operator, occurrence: int) -> None:
        self.operator, self.left = operator, occurrence

    def visit(self, node: Any) -> Any:
        for index, _ in enumerate(self.operator.mutation_positions(node)):
            if self.left == 0:
                node = self.operator.mutate(node, index)
            self.left -= 1
        return node


def _meaning(code: str) -> str:
    """The syntax tree without annotations, and without what only guards against other code."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            node.keywords = [each for each in node.keywords if each.arg not in GUARDS]
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [one for one in node.decorator_list if not _is_guard(one)]
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(value=0)
    return ast.dump(tree)


def _is_guard(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id in GUARDS


def mutants(paths: Sequence[str], seed: int) -> Iterator[Mutant]:
    """Without end but for that of the places, in an order drawn by the seed."""
    places: dict[tuple[str, tuple[int, int]], list[tuple[str, int]]] = {}
    every = operators()
    for path in paths:
        nodes = list(ast_nodes(get_ast((ROOT / path).read_text())))
        for name, operator in every.items():
            found = (place for node in nodes for place in operator.mutation_positions(node))
            for occurrence, (start, _) in enumerate(found):
                places.setdefault((path, start), []).append((name, occurrence))
    draw = random.Random(seed)
    for path, start in draw.sample(sorted(places), len(places)):
        name, occurrence = draw.choice(places[path, start])
        source = (ROOT / path).read_text()
        with contextlib.suppress(SyntaxError, AttributeError):  # `except pa.ArrowException` is none
            code = _Once(every[name], occurrence).walk(get_ast(source)).get_code()
            if _meaning(code) != _meaning(source):
                yield Mutant(path, start[0], name, code)


def expand(patterns: str, suffix: str) -> list[str]:
    """The files that the patterns of a room name, relative to the root."""
    found: set[Path] = set()
    for pattern in patterns.split():
        for path in ROOT.glob(pattern):
            found.update(path.rglob(suffix) if path.is_dir() else [path])
    return [str(path.relative_to(ROOT)) for path in sorted(found)]


class Copy:
    """A copy of the tree, in which one file at a time is broken."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        ignored = shutil.ignore_patterns("__pycache__", ".git", ".*_cache", "*.egg-info")
        shutil.copytree(ROOT, self.root, ignore=ignored)
        (folder / "shared").symlink_to(ROOT.parent / "shared")
        self.output = folder / "output.txt"

    def run(
        self, tests: Sequence[str], *, contexts: Path | None = None, limit: float = LIMIT
    ) -> int:
        """pytest's exit code; -1 where it ran past the limit. `contexts` gets lines by test."""
        child = os.fork()
        if child == 0:
            os.setsid()
            out = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.chdir(self.root)
            sys.path.insert(0, str(self.root))
            os.environ["PYTHONPATH"] = str(self.root)
            os._exit(_tests(tests, contexts))
        ends = time.monotonic() + limit
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() > ends:
                code = -1
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # workers that a broken test left
        return code

    def is_killed(self, mutant: Mutant, likely: Sequence[str], tests: Sequence[str]) -> bool:
        """Whether a test fails on it; the likely ones are asked first."""
        path = self.root / mutant.path
        source = path.read_text()
        path.write_text(mutant.code)
        cached = path.parent / "__pycache__"
        shutil.rmtree(cached, ignore_errors=True)
        try:
            return any(self.run(some) != 0 for some in (likely, tests) if some)
        finally:
            path.write_text(source)
            shutil.rmtree(cached, ignore_errors=True)


def _tests(tests: Sequence[str], contexts: Path | None) -> int:
    options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-p", "no:faulthandler"]
    options += ["-m", "not slow and not exhaustive", "-W", "ignore", "-o", f"timeout={LIMIT}"]
    if contexts is None:
        return int(pytest.main([*options, "--hypothesis-seed=0", *tests]))
    measured = coverage.Coverage(data_file=None, source=["jaxdata"], messages=False)
    measured.start()
    watch = _Watch(measured)
    code = int(pytest.main([*options, "--hypothesis-seed=0", *tests], [watch]))
    measured.stop()
    data = measured.get_data()
    lines = {path: data.contexts_by_lineno(path) for path in data.measured_files()}
    contexts.write_text(json.dumps({"lines": lines, "seconds": watch.seconds}))
    return code


class _Watch:
    """Notes which lines each test runs, and how long it takes."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        test = item.nodeid.partition("[")[0]
        self.measured.switch_context(test)
        begin = time.process_time()
        result = yield
        self.seconds[test] += time.process_time() - begin
        return result


class Result(NamedTuple):
    """A room's tests, and what they noticed."""

    room: str
    mutants: int
    killed: int
    seconds: float
    """of processor time that the room's tests take"""
    survivors: list[str]


def measure(room: str, count: int, seed: int, processes: int) -> Result:
    """Draw the mutants of a room and run its tests on each."""
    code, tests = ROOMS[room]
    files = expand(tests, "test_*.py")
    drawn = list(islice(mutants(expand(code, "*.py"), seed), count))
    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for number in range(processes):
            (place := Path(folder) / str(number)).mkdir()
            copies.append(Copy(place))
        first, contexts = copies[0], Path(folder) / "contexts.json"
        before = _processor_seconds()
        if first.run(files, limit=1200):
            sys.exit(
                f"the tests of {room} fail on code that nobody broke:\n{first.output.read_text()}"
            )
        seconds = _processor_seconds() - before
        first.run(files, contexts=contexts, limit=1800)
        watched = json.loads(contexts.read_text())

        def judge(mutant: Mutant) -> str | None:
            copy = copies.pop()
            by_line = watched["lines"].get(str(first.root / mutant.path), {})
            likely = {*by_line.get(str(mutant.line), ())} - {""}
            killed = copy.is_killed(mutant, sorted(likely, key=watched["seconds"].get), files)
            shown = mutant.show(copy.root) if not killed else None
            copies.append(copy)
            print("." if killed else "S", end="", flush=True)
            return shown

        with ThreadPoolExecutor(processes) as pool:
            survivors = [each for each in pool.map(judge, drawn) if each]
    print()
    return Result(room, len(drawn), len(drawn) - len(survivors), seconds, survivors)


def _processor_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def write_line(r: Result, path: Path) -> None:
    """Put a room's line into the table between its marks in a file."""
    marks = r"(?<=<!-- mutation table -->\n)|(?=<!-- end -->)"
    before, table, after = re.split(marks, path.read_text())
    lines = {line.split("|")[1].strip(): line for line in table.splitlines()[2:]}
    lines[r.room] = f"| {r.room} | {r.mutants} | {r.killed} | {r.seconds:.0f} |"
    rows = [lines[room] for room in ROOMS if room in lines]
    table = "\n".join(["| room | mutants | killed | seconds |", "| --- | --- | --- | --- |", *rows])
    path.write_text(f"{before}{table}\n{after}")


def main() -> None:
    """Parse the arguments, measure each room, print survivors."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rooms", nargs="*", choices=[[], *ROOMS], help="default: all")
    parser.add_argument("--mutants", type=int, default=60, help="for each room")
    parser.add_argument("--seed", type=int, default=1, help="draws them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", type=Path, help="a Markdown file whose table is replaced")
    arguments = parser.parse_args()
    for room in arguments.rooms or ROOMS:
        result = measure(room, arguments.mutants, arguments.seed, arguments.processes)
        share = f"{result.killed} of {result.mutants} killed"
        print("\n".join([*result.survivors, f"{room}: {share}, tests take {result.seconds:.0f} s"]))
        if arguments.table:
            write_line(result, arguments.table)


if __name__ == "__main__":
    main()
