"""The site: it builds without a warning, and its examples run."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jaxdata.converter.parameters import options
from tests.conftest import ROOT
from tests.readmes import Readme

PAGES = [
    Readme(path.relative_to(ROOT).as_posix()) for path in (ROOT / "tools/docs/pages").iterdir()
]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_example_of_a_page_runs(page: Readme, tmp_path: Path) -> None:
    lines = [f'{{"text": "page {number}: {"some words " * 40}"}}' for number in range(400)]
    (tmp_path / "pages.jsonl").write_text("\n".join(lines))
    for command in page.commands():
        subprocess.run([sys.executable, "-m", *shlex.split(command)], cwd=tmp_path, check=True)
    script = tmp_path / "page.py"
    script.write_text("\n".join(page.blocks("python")))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
def test_it_builds_and_every_public_name_has_a_page(tmp_path: Path) -> None:
    if not importlib.util.find_spec("mkdocs"):
        pytest.skip("mkdocs is not installed (pip install '.[docs]')")
    command = f"-m mkdocs build --strict -f tools/docs/mkdocs.yml -d {tmp_path}"
    done = subprocess.run(
        [sys.executable, *command.split()],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    import jaxdata

    for name in jaxdata.__all__:
        page = (tmp_path / "reference" / f"jaxdata.{name}" / "index.html").read_text()
        assert f'id="jaxdata.{name}"' in page
    commands = (tmp_path / "commands/index.html").read_text()
    assert all(f"--{name.replace('_', '-')} " in commands for name in options())
