"""What `tools` shows, run as a user runs it: examples, the notebook, the site, the benchmarks."""

import importlib.util
import json
import math
import os
import re
import runpy
import shlex
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.converter.parameters import options
from tests.commands import python
from tests.conftest import ROOT, xla_flags
from tests.readmes import Readme

EXAMPLES = ROOT / "tools/examples"
NOTEBOOK = EXAMPLES / "quickstart.ipynb"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": xla_flags(2)}
ENVIRONMENT |= {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "NO_MKDOCS_2_WARNING": "1"}


def run(*arguments: object, cwd: Path = ROOT) -> str:
    return python(*arguments, cwd=cwd, env=ENVIRONMENT).stdout


def losses(example: str, *arguments: object, cwd: Path) -> list[str]:
    said = run(EXAMPLES / f"{example}.py", *arguments, cwd=cwd)
    return re.findall(r"^step \d+  loss .*$", said, re.MULTILINE)


@pytest.fixture(scope="module")
def dataset(module_path: Path) -> Path:
    for source in ("rows", "feed"):
        texts = [path.read_text() for path in sorted((ROOT / "jaxdata" / source).glob("*.py"))]
        file, output = module_path / f"{source}.jsonl", module_path / "d"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        jaxdata.convert(file, output=output, source=source, tokenizer="bytes", workers=1)
    return output


@pytest.mark.exhaustive
@pytest.mark.parametrize("example", ["jax_loop", "torch_loop", "hf_trainer", "odm", "doremi"])
def test_a_stopped_loop_goes_on_to_its_losses(example: str, dataset: Path, tmp_path: Path) -> None:
    named = {"odm": "{}.npz", "doremi": "{}.npz"}.get(example, "{}").format
    whole = losses(example, dataset, named("whole"), 6, cwd=tmp_path)
    assert [int(line.split()[1]) for line in whole] == list(range(6))
    assert losses(example, dataset, named("broken"), 3, cwd=tmp_path) == whole[:3]
    assert losses(example, dataset, named("broken"), 6, cwd=tmp_path)[-3:] == whole[3:]


@pytest.fixture(scope="module")
def tokenizer(shared_data: Path, module_path: Path) -> Path:
    """A small vocabulary: a large one makes the loss of a tiny model slow."""
    with (shared_data / "instruct/gsm8k_train.jsonl").open() as lines:
        texts = [json.loads(line)["question"] for line in islice(lines, 400)]
    jaxdata.tokenizers.train_byte_level(texts, module_path / "tokenizer", vocab_size=512)
    return module_path / "tokenizer/tokenizer.json"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("example", "data", "first"),
    [("sft", "gsm8k_train.jsonl", math.log(512)), ("dpo", "dpo_en_demo.json", math.log(2))],
)
def test_tuning_goes_from_a_file_to_a_trained_model(
    example: str, data: str, first: float, tokenizer: Path, shared_data: Path, tmp_path: Path
) -> None:
    file = shared_data / "instruct" / data
    found = losses(example, file, tokenizer, tmp_path / "run", 2, cwd=tmp_path)
    assert len(found) == 2
    assert float(found[0].split()[3]) == pytest.approx(first, rel=0.05)


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_in_order_and_its_outputs_are_of_one_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not re.search(r"/(home|root|tmp|usr|Users|work)/", NOTEBOOK.read_text())
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "quickstart"}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"train/code: \d+ documents, .*\ntrain/docs: \d+ documents, ", printed)
    assert "from row 8 [(4, 512), (4, 512)]\nthe same: True\n" in printed
    # Row 18 of the run is explained: its text is the batch's, from the module that it names.
    traced = re.findall(r"slots \(\d+, \d+\): (code|docs):(\d+), .*\n    of ([\w.]+) - ", printed)
    assert traced
    for source, document, module in traced:
        assert [*names[source]()][int(document)]["module"] == module


PAGES = [Readme(str(path.relative_to(ROOT))) for path in (ROOT / "tools/docs/pages").iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_example_of_a_page_runs(page: Readme, tmp_path: Path) -> None:
    lines = [f'{{"text": "page {number}: {"some words " * 40}"}}' for number in range(400)]
    (tmp_path / "pages.jsonl").write_text("\n".join(lines))
    for command in page.commands():
        run("-m", *shlex.split(command), cwd=tmp_path)
    (tmp_path / "page.py").write_text("\n".join(page.blocks("python")))
    run("page.py", cwd=tmp_path)


@pytest.mark.exhaustive
def test_the_site_builds_and_every_public_name_has_a_page(tmp_path: Path) -> None:
    if not importlib.util.find_spec("mkdocs"):
        pytest.skip("mkdocs is not installed (pip install '.[docs]')")
    run(*f"-m mkdocs build --strict -f tools/docs/mkdocs.yml -d {tmp_path}".split())
    for name in jaxdata.__all__:
        page = (tmp_path / "reference" / f"jaxdata.{name}" / "index.html").read_text()
        assert f'id="jaxdata.{name}"' in page
    commands = (tmp_path / "commands/index.html").read_text()
    assert all(f"--{name.replace('_', '-')} " in commands for name in options())


SCRIPTS = ROOT / "tools/bench"
NAMES = sorted(file.stem for file in SCRIPTS.glob("*.py") if "__main__" in file.read_text())
KEYS = {"bench", "question", "name", "unit", "better", "median", "min", "max", "rounds", "facts"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_prints_json_lines(name: str, module_path: Path) -> None:
    """Of a tiny corpus, made by the first that needs it; figures are not judged."""
    (corpora := module_path / "bench").mkdir(exist_ok=True)
    printed = run(SCRIPTS / f"{name}.py", "--quick", "--data", corpora, "--json")
    lines: list[dict[str, Any]] = [json.loads(line) for line in printed.splitlines()]
    assert lines
    for line in lines:
        assert line.keys() >= KEYS
        assert line["bench"] == name
        assert line["min"] <= line["median"] <= line["max"]
        if "ratio" in line:
            assert line["ratio"] > 0
            assert line["against"] in {other["name"] for other in lines}


POLICIES: dict[str, Callable[..., Any]] = {
    name: runpy.run_path(str(ROOT / f"tools/examples/{name}.py"))[kind]
    for name, kind in {"odm": "OnlineDataMixing", "doremi": "ExcessLoss"}.items()
}
LOSSES = [([3.5, 1.2, 0.0], [7, 4, 0]), ([2.0, 9.0, 0.5], [4, 3, 2])]
LOSSES += [([8.25, 0.0, 4.0], [11, 0, 2]), ([1.5, 2.25, 6.0], [6, 3, 2])]
# Computed from the papers' formulas in decimal arithmetic of 40 digits.
TABLES = {
    "odm": [
        [0.333333333333, 0.333333333333, 0.333333333333],
        [0.333333333333, 0.333333333333, 0.333333333333],
        [0.331009876702, 0.336161421097, 0.332828702201],
        [0.323639716544, 0.334137001251, 0.342223282205],
    ],
    "doremi": [
        [0.412247692227, 0.337580286594, 0.250172021178],
        [0.087593045304, 0.870833431235, 0.041573523461],
        [0.010634228783, 0.971968066681, 0.017397704535],
        [0.005968341904, 0.849489991397, 0.144541666700],
    ],
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_gives_the_weights_of_its_paper(name: str) -> None:
    policy = POLICIES[name](3)
    for (sums, counts), expected in zip(LOSSES, TABLES[name], strict=True):
        assert policy.update(sums, counts) == pytest.approx(expected, abs=1e-11)
