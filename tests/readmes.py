"""READMEs as data: their blocks, links, tables and headings."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "jaxdata"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Readme:
    """One document; `path` is relative to the repository."""

    path: str

    def __str__(self) -> str:
        return self.path

    @property
    def folder(self) -> Path:
        return (ROOT / self.path).parent

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text()

    @property
    def prose(self) -> str:
        """All but fenced blocks."""
        return FENCE.sub("", self.text)

    def blocks(self, *languages: str) -> list[str]:
        return [text for name, text in FENCE.findall(self.text) if name in languages]

    def commands(self) -> list[str]:
        """The lines of its shell blocks, those that a backslash joins as one."""
        joined = "".join(self.blocks("sh")).replace("\\\n", "")
        lines = (line.strip() for line in joined.splitlines())
        return [re.sub(r"\s{2,}", " ", line) for line in lines if line]

    def anchors(self) -> set[str]:
        """What GitHub makes of the headings."""
        headings = re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)
        bare = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
        return {heading.replace(" ", "-") for heading in bare}

    def links(self) -> list[str]:
        return [link for link in re.findall(r"\]\(([^)\s]+)\)", self.prose) if "://" not in link]

    def named(self) -> list[str]:
        """What stands in backticks."""
        return re.findall(r"`([^`\n]+)`", self.prose)

    def column(self, header: str) -> list[str]:
        """Everything in backticks in the first column of the table with this header."""
        rows = self.prose.split(f"| {header} |")[1].split("\n\n")[0].splitlines()[2:]
        return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def of(room: str) -> Readme:
    """The README of a room, or of a folder of one."""
    (found,) = [path for path in PACKAGE.rglob("README.md") if path.parent.name == room]
    return Readme(str(found.relative_to(ROOT)))


TOP = Readme("README.md")
OF_ROOMS = [Readme(f"jaxdata/{room}/README.md") for room in ROOMS]
OF_FOLDERS = [Readme(str(path.relative_to(ROOT))) for path in sorted(PACKAGE.glob("*/*/README.md"))]
READMES = [TOP, *OF_ROOMS, *OF_FOLDERS]
OTHERS = [".github/CONTRIBUTING.md", ".github/CHANGELOG.md", "tests/README.md"]
DOCUMENTS = [*READMES, *map(Readme, OTHERS)]
