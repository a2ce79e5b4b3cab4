"""`jaxdata inspect` of a text: where it came from, what is printed of it, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.cells import cell_len

import jaxdata
from tests import builders
from tests.converter.here import convert_here
from tests.look.trace.conftest import asked, run


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of text files, one of which tries to paint the terminal."""
    folder = tmp_path_factory.mktemp("texts")
    lines = [
        f"page {number} tells of {number * 7919} things, 日本 und größer" for number in range(90)
    ]
    lines[40] = "a page \x1b[31min red\x07 and \u202edekcatta\nof two lines"
    lines[50] = "a long page " + "word " * 300 + "whose end is the needle itself"
    file = folder / "pages.jsonl"
    file.write_text(
        "".join(
            json.dumps({"text": line, "url": f"http://p/{len(line)}"}) + "\n"
            for line in ["", *lines]
        )
    )
    convert_here(
        str(file), output=folder / "data", source="web", tokenizer="bytes", workers=1, keep=["url"]
    )
    builders.run(
        folder, dataset=str(folder / "data"), pack={"seq_len": 64}, loader={"batch_size": 4}
    )
    return folder


def test_a_text_is_found_and_where_it_came_from(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = texts / "run.yaml"
    found = asked(capsys, "--config", config, "--find", "page 17 tells")
    assert found["found"] == 1
    document = found["documents"][0]
    line = (texts / "pages.jsonl").read_text().splitlines()[document["origin"]["line"] - 1]
    assert "page 17 tells" in line
    assert document["origin"]["file"] == "pages.jsonl"
    assert document["origin"]["kept"] == {"url": json.loads(line)["url"]}
    assert f"url: {json.loads(line)['url']}" in run(
        capsys, "--config", config, "--find", "page 17 tells"
    )
    loader = jaxdata.load(config)
    for piece in document["pieces"]:
        loader.seek(step=piece["step"])
        row = next(loader)["inputs"][piece["row_in_batch"]][slice(*piece["slots"])]
        assert bytes(row.tolist()).decode() in json.loads(line)["text"]
    needle = asked(capsys, "--config", config, "--find", "the needle")["documents"][0]
    holding = [piece for piece in needle["pieces"] if piece["holds_match"]]
    assert len(holding) < len(needle["pieces"])
    ((first, stop),) = (match["tokens"] for match in needle["matches"])
    assert stop - first == len("the needle")
    assert all(p["tokens"][0] < stop and first < p["tokens"][1] for p in holding)
    assert "the needle" in needle["excerpt"]
    many = asked(capsys, "--config", config, "--find", "things", "--limit", 3)
    assert (many["found"], len(many["documents"])) == (88, 3)
    said = run(capsys, "--config", config, "--find", "things", "--limit", 3)
    assert "and 85 more documents" in said
    assert "no document of this run contains the text" in run(
        capsys, "--config", config, "--find", "nothing"
    )


def test_untrusted_text_stays_text_and_lines_fit_80_columns(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(capsys, "--config", texts / "run.yaml", "--find", "in red")
    assert not {"\x1b", "\x07", "\u202e"} & set(said)
    assert "a page \\x1b[31min red\\x07 and \\u202edekcatta\\nof two" in said
    said = run(capsys, "--config", texts / "run.yaml", "--step", 2)
    assert "日本" in said
    assert max(cell_len(line.rstrip()) for line in said.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--step", "1", "--find", "x"], 2, "give one of them"),
        (["--find", "x", "--find-file", "x"], 2, "give one of them"),
        (["--find", ""], 1, "the text to look for is empty"),
        (["--find", "a\udcff"], 1, "is no Unicode text"),
        (["--find-file", "nowhere.jsonl"], 1, "nowhere.jsonl cannot be read: No such file"),
        (["--document", "web"], 2, "expected [SPLIT/]SOURCE:ID, like web:17"),
        (["--document", "books:1"], 1, "no source 'books' in this run: it has "),
        (["--document", "web:999"], 1, "no document web:999: 'web' has 0 to "),
        (["--step", "9999"], 1, "there is no step 9999: the steps are 0 to "),
        (["--step", "1", "--row", "77"], 1, "the batch of step 1 has rows 0 to 3"),
        (["--state", "nowhere"], 1, "no state at nowhere"),
    ],
)
def test_what_is_asked_wrongly(
    texts: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, says: str
) -> None:
    assert says in run(capsys, "--config", texts / "run.yaml", *arguments, status=status)


def test_the_state_of_another_run_is_refused(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = jaxdata.load(texts / "run.yaml", seed=3).get_state()
    (tmp_path / "s.json").write_text(json.dumps(state))
    arguments = ["--config", texts / "run.yaml", "--state", tmp_path / "s.json"]
    assert "seed was 3, is 0" in run(capsys, *arguments, status=1)
