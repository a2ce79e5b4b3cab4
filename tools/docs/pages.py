"""The pages of the site, which lie elsewhere in the project: READMEs, names, commands, the config.

A hook of mkdocs. READMEs keep their place, so that their links stay right; what they link to that
is no page (a script, a config) is named in code instead.
"""

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import griffe
from click.testing import CliRunner
from mkdocs.structure.files import File, Files

import jaxdata
from jaxdata.cli import cli
from jaxdata.cli.options import Command

ROOT = Path(__file__).parents[2]
READMES = [
    "README.md",
    *sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("jaxdata/**/README.md")),
]
MORE = ["tools/bench/RESULTS.md", ".github/CHANGELOG.md", ".github/CONTRIBUTING.md"]
MODULES = ("testing", "tokenizers", "torch")
"""rooms with public names of their own"""


def on_config(config: Any) -> Any:
    """Order the pages: the front page, pages of this folder, rooms, names, the rest."""
    rooms = [{Path(path).parent.relative_to("jaxdata").as_posix(): path} for path in READMES[1:]]
    own = sorted(Path(config.docs_dir).glob("*.md"))
    config.nav = [
        {"jaxdata": "README.md"},
        *({title(page.read_text()): page.name} for page in own),
        {"Rooms": rooms},
        {
            "Reference": [{name: f"reference/{name}.md"} for name in names()]
            + [{"commands": "commands.md"}, {"config": "config.md"}]
        },
        {"More": [{title((ROOT / path).read_text()): shown(path)} for path in MORE]},
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add what is written elsewhere."""
    pages = {path: (ROOT / path).read_text() for path in (*READMES, *MORE)}
    known = {*pages, *(file.src_uri for file in files)}
    for path, text in pages.items():
        files.append(File.generated(config, shown(path), content=linked(text, path, known)))
    for name in names():
        text = f"::: {name}\n    options: {{heading_level: 1, show_root_full_path: true}}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.append(File.generated(config, "config.md", content=config_page()))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for image in (ROOT / ".github/images").glob("*.svg"):
        path = image.relative_to(ROOT).as_posix()
        files.append(File.generated(config, shown(path), abs_src_path=str(image)))
    return files


def shown(path: str) -> str:
    """Where a file lies in the site, which leaves out names that begin with a dot."""
    return path.removeprefix(".")


def names() -> list[str]:
    """All public names, in full. Rooms are read and not imported: torch may not be installed."""
    found = [f"jaxdata.{name}" for name in jaxdata.__all__]
    for module in MODULES:
        tree = ast.parse((ROOT / "jaxdata" / module / "__init__.py").read_text())
        (names,) = (
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        )
        found += [f"jaxdata.{module}.{name}" for name in names]
    return found


def title(text: str) -> str:
    """The heading of a page."""
    found = re.search(r"^# (.+)", text, re.MULTILINE)
    assert found, f"a page has no heading: {text[:40]!r}"
    return found[1]


def linked(text: str, path: str, known: set[str]) -> str:
    """A page with links to pages only: other targets are named."""

    def link(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        if re.match(r"\w+:|#", target):
            return found[0]
        file, _, place = target.partition("#")
        full = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        if full in known or full.startswith(".github/images/"):
            here = posixpath.relpath(shown(full), posixpath.dirname(shown(path)) or ".")
            return f"{words}({here}{place and '#'}{place})"
        return f"{words[1:-1]} (`{full}`)" if full not in words else words[1:-1]

    return re.sub(r"(\[[^\]]*\])\(([^)\s]+)\)", link, text)


def config_page() -> str:
    """Every field of a config, from the models."""
    from jaxdata.config.annotated import config_schema

    schema = config_schema()
    models = {"A config": schema, **schema.get("$defs", {})}
    lines = [
        "# Config",
        "",
        "Every field, its default and what it says; `jaxdata config` prints one to fill in, "
        "`jaxdata config --all` with those for experts.",
        "",
    ]
    for name, model in models.items():
        if fields := model.get("properties"):
            lines += [
                f"## {name}",
                "",
                model.get("description", ""),
                "",
                "| field | default | meaning |",
                "| --- | --- | --- |",
            ]
            lines += [row(*field) for field in fields.items()]
            lines.append("")
    return "\n".join(lines)


def commands_page() -> str:
    """Every option of every command, from the same models and signatures."""
    typed, lines = CliRunner(), ["# Commands", ""]
    for name, command in commands(cli, ()):
        every = "--help-all" if isinstance(command, Command) and command.front else "--help"
        said = typed.invoke(cli, [*name, every], prog_name="jaxdata", terminal_width=100)
        lines += [f"## jaxdata {' '.join(name)}", "", "```text", said.output.rstrip(), "```", ""]
    return "\n".join(lines)


def commands(
    group: click.Group, above: tuple[str, ...]
) -> Iterator[tuple[list[str], click.Command]]:
    """The commands of a group and of those in it, with the words that are typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command
        if isinstance(command, click.Group):
            yield from commands(command, (*above, name))
        else:
            yield [*above, name], command


def row(name: str, field: dict[str, Any]) -> str:
    """A line of the table."""
    default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
    expert = " (for experts)" if field.get("advanced") else ""
    return f"| `{name}` | {default} | {field.get('description', '').replace('|', '/')}{expert} |"


class Doctests(griffe.Extension):
    """Examples in docstrings are code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put a fence around each."""
        if obj.docstring:
            example = r"((?:^[ \t]*>>>.*\n?(?:^(?!\s*$|[ \t]*```).*\n?)*\n?)+)"
            obj.docstring.value = re.sub(
                example, r"```pycon\n\1\n```\n", obj.docstring.value, flags=re.MULTILINE
            )
