"""Count the package: code, files, imports, what a run of its promises calls, options, fields.

    python tools/house.py               # each room, the sums, the surface
    python tools/house.py --promise     # also runs the demo and the commands of a first day

Code is lines without docstrings, comments and blanks.
"""

import argparse
import ast
import io
import os
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxdata"
SHORT = 60
"""a file of fewer lines with a single importer belongs in it"""
NO_CODE = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}
PROMISE = """
demo --quick --output demo
convert demo/data/corpus -o more --source more --tokenizer bytes --minhash
dedup more
inspect more
verify more
"""


class File(NamedTuple):
    """What a file is made of."""

    code: int
    imports: int
    """lines"""
    functions: int


def lines_of_code(source: str) -> set[int]:
    """The numbers of the lines that are neither docstring nor comment nor blank."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if tokenize.tok_name[token.type] not in NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def count(path: Path) -> File:
    """Read and count one file."""
    source = path.read_text()
    tree = list(ast.walk(ast.parse(source)))
    code = lines_of_code(source)
    imports: set[int] = set()
    for node in tree:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in tree)
    return File(len(code), len(imports & code), functions)


def importers(paths: list[Path]) -> dict[Path, set[Path]]:
    """The files of the package that import each file."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    found: dict[Path, set[Path]] = {path: set() for path in paths}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                if name in modules and modules[name] != path:
                    found[modules[name]].add(path)
    return found


def surface() -> dict[str, str]:
    """Commands, options and fields that a user can give, with how many `--help` does not show."""
    import click

    from jaxdata.cli import COMMANDS, SYNONYMS, cli
    from jaxdata.config.annotated import config_schema

    context = click.Context(cli)
    settings = 0
    todo: list[tuple[str, click.Group]] = [("", cli)]
    counts: dict[str, int] = {}
    rare = 0
    while todo:
        above, group = todo.pop()
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command
            if isinstance(command, click.Group):
                todo.append((f"{name} ", command))
            shown = command.get_help(click.Context(command, terminal_width=200))
            every = [p for p in command.get_params(context) if isinstance(p, click.Option)]
            options = [p for p in every if not getattr(p, "by_set", False)]
            counts[above + name], settings = len(options), settings + len(every) - len(options)
            rare += sum(not any(f"{flag} " in shown for flag in each.opts) for each in options)
    schema = config_schema()
    models = [schema, *schema.get("$defs", {}).values()]
    fields = [each for model in models for each in model.get("properties", {}).values()]
    advanced = sum(bool(each.get("advanced")) for each in fields)
    words = len({name.split()[0] for name in SYNONYMS if not name.startswith("-")})
    by_command = ", ".join(f"{name} {count}" for name, count in counts.items())
    return {
        "commands": f"{len(COMMANDS)}, and {words} words for what once were commands",
        "options": f"{sum(counts.values())}, with --help; {rare} of them it does not show",
        "": by_command,
        "settings": f"{settings} more, given by --set NAME=VALUE",
        "config fields": f"{len(fields) - advanced}, and {advanced} advanced",
    }


def called_by_the_promise(paths: list[Path]) -> tuple[int, int]:
    """Functions of the package that the commands of a first day enter, and all of them."""
    import coverage

    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "coveragerc")
        data = Path(folder, "data")
        settings.write_text(
            f"[run]\nparallel = true\nsource = {PACKAGE}\ndata_file = {data}\n"
            "patch = subprocess\nsigterm = true\nconcurrency = thread,multiprocessing\n"
        )
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COVERAGE_RCFILE": str(settings)}
        for line in PROMISE.strip().splitlines():
            command = [sys.executable, "-m", "coverage", "run", "-m", "jaxdata", *line.split()]
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                sys.exit(f"jaxdata {line} failed:\n{done.stderr}")
        every = coverage.CoverageData(str(data))
        for part in Path(folder).glob("data.*"):
            read = coverage.CoverageData(str(part))
            read.read()
            every.update(read)
        called = total = 0
        for path in paths:
            ran = set(every.lines(str(path)) or ())
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    total += 1
                    called += any(each.lineno in ran for each in node.body)
    return called, total


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--promise", action="store_true", help="run what is promised (minutes)")
    arguments = parser.parse_args()
    paths = sorted(PACKAGE.rglob("*.py"))
    counted = {path: count(path) for path in paths}
    rooms: dict[str, list[File]] = {}
    for path, found in counted.items():
        rooms.setdefault(path.relative_to(PACKAGE).parts[0].removesuffix(".py"), []).append(found)
    print("| room | files | code | functions |\n| --- | --- | --- | --- |")
    for room, files in sorted(rooms.items(), key=lambda item: -sum(f.code for f in item[1])):
        print(f"| {room} | {len(files)} | {sum(f.code for f in files):,} | ", end="")
        print(f"{sum(f.functions for f in files)} |")
    code, imports = sum(f.code for f in counted.values()), sum(f.imports for f in counted.values())
    print(f"\ncode lines      {code:,}\nfiles           {len(paths)}")
    print(f"functions       {sum(f.functions for f in counted.values()):,}")
    print(f"imports         {imports / code:.1%} of the code")
    entries = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()]
    print(f"at the top      {sum(path.name != '__pycache__' for path in entries)} entries")
    alone = Counter(
        counted[path].code < SHORT and len(by) == 1 and path.name != "__init__.py"
        for path, by in importers(paths).items()
    )
    print(f"short, with one importer: {alone[True]} files (under {SHORT} lines)")
    for name, number in surface().items():
        print(f"{name:15} {number}")
    if arguments.promise:
        called, total = called_by_the_promise(paths)
        print(f"called by the promise: {called:,} of {total:,} functions ({called / total:.0%})")


if __name__ == "__main__":
    main()
