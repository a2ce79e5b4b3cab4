"""`jaxdata trace`: what it says of a batch, and of a document, is what was really emitted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.cli import main
from jaxdata.config import build_rows, load_config
from jaxdata.converter import convert
from jaxdata.look.search import locate_text
from jaxdata.look.states import read_state
from jaxdata.packing.planner import Planner
from jaxdata.packing.settings import PackSettings
from jaxdata.testing import distinct_documents, write_dataset

NAMES = ("code", "web", "wiki")
RNG = np.random.default_rng(11)
TEXTS = {
    name: distinct_documents(RNG.integers(1, 150, count), first=1 + 20_000 * number)
    for number, (name, count) in enumerate({"web": 250, "code": 150, "wiki": 40}.items())
}


def run(capsys: pytest.CaptureFixture[str], *arguments: Any, status: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["trace", *map(str, arguments)])
    printed = capsys.readouterr()
    assert int(ended.value.code or 0) == status, printed.err
    return printed.err if status else printed.out


def asked(capsys: pytest.CaptureFixture[str], *arguments: Any) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    sources = {f"train/{name}": documents for name, documents in TEXTS.items()}
    write_dataset(tmp_path / "d", sources, shard_documents=64, record_tokens=50)
    path = tmp_path / "run.yaml"
    fields = {
        "dataset": str(tmp_path / "d"),
        "pack": {"seq_len": 32, "block": 50, "overlap": 5},
        "curriculum": [
            {"rows": 300, "mix": {"web": 0.6, "code": 0.3, "wiki": 0.1}},
            {"rows": 371, "mix": {"web": 0.3, "code": 0.3, "wiki": 0.4}},
        ],
        "epochs": {"web": 1.5, "code": 2, "wiki": 6},
        "loader": {"batch_size": 24},
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def owners() -> dict[int, tuple[str, int, int]]:
    """Of each token id, the one place where it stands: source, document, token."""
    return {
        int(token): (name, number, place)
        for name, documents in TEXTS.items()
        for number, document in enumerate(documents)
        for place, token in enumerate(document)
    }


OWNERS = owners()
Place = tuple[int, int, int, int]
"""(step, row of the batch, first slot, first token)"""


def emitted(batch: Any, step: int) -> Iterator[tuple[tuple[str, int], Place]]:
    """The segments of a batch, told from its tokens alone."""
    for row in range(len(batch["inputs"])):
        ids = batch["segment_ids"][row]
        for segment in range(1, int(ids.max()) + 1):
            slot = int(np.flatnonzero(ids == segment)[0])
            name, document, token = OWNERS[int(batch["inputs"][row][slot])]
            yield (name, document), (step, row, slot, token)


def told(pieces: list[Any]) -> list[Place]:
    return [(p["step"], p["row_in_batch"], p["slots"][0], p["tokens"][0]) for p in pieces]


def test_a_batch_is_explained(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = jaxdata.load(config)
    batches = list(loader)
    for step in (0, 5, len(batches) - 1):
        found = asked(capsys, "--config", config, "--step", step)
        expected = list(emitted(batches[step], step))
        pieces = found["pieces"]
        assert [(p["source"], p["document"]) for p in pieces] == [whose for whose, _ in expected]
        assert told(pieces) == [place for _, place in expected]
        for piece in pieces:
            row, (first, stop) = piece["row_in_batch"], piece["slots"]
            assert piece["row"] == step * 24 + row
            document = TEXTS[piece["source"]][piece["document"]]
            assert piece["length"] == len(document)
            held = document[slice(*piece["tokens"])]
            inputs, targets = batches[step]["inputs"][row], batches[step]["targets"][row]
            assert inputs[first:stop].tolist() == held[: stop - first].tolist()
            assert targets[stop - 1] == held[-1]
            loss = batches[step]["loss_mask"][row][first:stop]
            assert piece["without_loss"] == int((~loss).sum())
            number, token = piece["document"], piece["tokens"][0]
            shard = f"train/{piece['source']}/{number // 64:05}-00000.array_record"
            assert piece["origin"]["shard"] == shard
            before = TEXTS[piece["source"]][number // 64 * 64 : number]
            records = sum(-(-len(each) // 50) for each in before) + token // 50
            assert piece["origin"]["record"] == records
            assert piece["origin"]["line"] == number
    one = asked(capsys, "--config", config, "--step", 5, "--row", 7)["pieces"]
    assert one == [
        p
        for p in asked(capsys, "--config", config, "--step", 5)["pieces"]
        if p["row_in_batch"] == 7
    ]


@pytest.mark.parametrize("strategy", ["best_fit", "concat", "crop", "pad"])
def test_every_document_is_where_it_was_emitted(config: Path, strategy: str) -> None:
    from jaxdata.look.trace import Tracer

    more = {"pack": {"strategy": strategy, "overlap": 0}}
    seen: dict[tuple[str, int], list[Place]] = defaultdict(list)
    loader = jaxdata.load(config, **more)
    for step, batch in enumerate(loader):
        for whose, place in emitted(batch, step):
            seen[whose].append(place)
    tracer = Tracer(jaxdata.load(config, **more), None)
    for name, documents in TEXTS.items():
        for number in range(len(documents)):
            pieces = [piece.as_dict() for piece in tracer.pieces(name, number)]
            assert told(pieces) == seen[name, number], (name, number)
    assert len(seen) > 400


@pytest.mark.parametrize("kind", ["pack", "repeat", "evaluation"])
def test_rows_that_are_not_mixed_are_traced(config: Path, kind: str) -> None:
    from jaxdata.look.trace import Tracer

    dataset = jaxdata.load(config).rows.sources["web"].table.documents[0]
    rows: Any = jaxdata.pack(dataset, seq_len=32, overlap=8)
    if kind == "repeat":
        rows = rows.repeat(2)
    if kind == "evaluation":
        rows = build_rows(load_config(config), "train", shuffle=False)
    loader = jaxdata.Loader(rows, batch_size=4)
    seen: dict[tuple[str, int], list[Place]] = defaultdict(list)
    for step, batch in enumerate(loader):
        for (name, number), place in emitted(batch, step):
            seen[f"train/{name}", number].append(place)
    tracer = Tracer(loader, None)
    assert loader.report().sources.keys() == set(tracer.names)
    for name in tracer.names:
        for number in range(len(tracer.documents(name))):
            pieces = [piece.as_dict() for piece in tracer.pieces(name, number)]
            assert told(pieces) == seen[name, number], (name, number)
    assert len(seen) > 100


def test_after_a_resume_with_skips_on_three_hosts(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run changes its batch size and its hosts, and rows are left out on the way."""
    seen: dict[tuple[str, int], list[Place]] = defaultdict(list)

    def record(batch: Any, step: int) -> None:
        for whose, place in emitted(batch, step):
            seen[whose].append(place)

    first = jaxdata.load(config, loader={"skip_rows": [[50, 61]]})
    for step in range(9):
        record(next(first), step)
    first.skip(230, 300)
    state = json.loads(json.dumps(first.get_state()))
    hosts = [jaxdata.load(config, shard=(host, 3), loader={"batch_size": 30}) for host in range(3)]
    for host in hosts:
        host.set_state(state)
    step = 9
    for parts in zip(*hosts, strict=True):
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        record(batch, step)
        step += 1
        if step == 14:
            saved = tmp_path / "state.json"
            saved.write_text(json.dumps(hosts[1].get_state()))
    ways = ["--config", config, "--loader.batch_size", 30, "--state", saved]
    for whose in [("web", 3), ("web", 77), ("code", 12), ("wiki", 5), ("wiki", 30)]:
        found = asked(capsys, *ways, "--document", f"{whose[0]}:{whose[1]}")["documents"][0]
        trained = [piece for piece in found["pieces"] if piece["step"] is not None]
        assert told(trained) == seen[whose]
        assert [p["trained"] for p in trained] == [p["step"] < 14 for p in trained]
    lost = {row for a, b in ((50, 61), (230, 300)) for row in range(a, b)}
    assert {p["row"] for p in found["pieces"] if p["step"] is None} <= lost
    assert asked(capsys, *ways)["step"] == 14, "the batch that comes next"
    for at in (2, 8, 9, 13, 20):
        pieces = asked(capsys, *ways, "--step", at)["pieces"]
        expected = {
            (whose, place) for whose, places in seen.items() for place in places if place[0] == at
        }
        owners_told = [(p["source"], p["document"]) for p in pieces]
        assert set(zip(owners_told, told(pieces), strict=True)) == expected
    said = run(capsys, *ways, "--document", "wiki:5")
    assert "was in step" in said
    assert "will be in step" in said


def test_states_of_all_kinds(config: Path, tmp_path: Path) -> None:
    loader = jaxdata.load(config)
    states = []
    with ocp.CheckpointManager((tmp_path / "run/checkpoints").resolve()) as manager:
        for step in (1, 2, 10):
            next(loader)
            states.append(json.loads(json.dumps(loader.get_state())))
            saved = ocp.args.JsonSave(loader.get_state())
            manager.save(step, args=ocp.args.Composite(loader=saved))
        manager.wait_until_finished()
    run_folder = tmp_path / "run"
    for path in (run_folder, run_folder / "checkpoints", run_folder / "checkpoints/10"):
        assert read_state(path) == states[-1]
    assert read_state(run_folder / "checkpoints/2") == states[1]
    assert read_state(run_folder / "checkpoints/2/loader") == states[1]
    (run_folder / "checkpoints/10/loader/metadata").write_bytes(b'{"version"')
    with pytest.raises(jaxdata.InputError, match=r"10/loader/metadata is damaged: it is no JSON"):
        read_state(run_folder)
    with pytest.raises(jaxdata.InputError, match="there is no such file or folder"):
        read_state(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(jaxdata.InputError, match=r"expected the JSON of loader\.get_state\(\)"):
        read_state(tmp_path / "empty")


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
    convert(
        str(file), output=folder / "data", source="web", tokenizer="bytes", workers=1, keep=["url"]
    )
    config = {"dataset": str(folder / "data"), "pack": {"seq_len": 64}, "loader": {"batch_size": 4}}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
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
    first, stop = needle["match"]
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


def test_untrusted_text_stays_text(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "--config", texts / "run.yaml", "--find", "in red")
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "\u202e" not in said
    assert "a page \\x1b[31min red\\x07 and \\u202edekcatta\\nof two" in said


def test_lines_fit_80_columns(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.cells import cell_len

    said = run(capsys, "--config", texts / "run.yaml", "--step", 2)
    assert "日本" in said
    assert max(cell_len(line.rstrip()) for line in said.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "give --step, --state, --document or --find"),
        (["--step", "1", "--find", "x"], 2, "give one of them"),
        (["--document", "web"], 2, "expected SOURCE:ID, like web:1234"),
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


@given(st.integers(1, 300), st.integers(1, 9), st.booleans(), st.data())
def test_the_place_of_a_document_is_the_inverse_of_dealing(
    count: int, shuffle_run: int, shuffle: bool, data: st.DataObject
) -> None:
    documents = jaxdata.ArrayDocuments([[1, 2]] * count)
    settings = PackSettings(4, order=1, shuffle_run=shuffle_run, shuffle=shuffle)
    order = Planner(documents, settings).order
    shuffled = order.documents_of((0, count)).tolist()
    document = data.draw(st.integers(0, count - 1))
    assert shuffled[order.position(document)] == document


@given(st.text("ab", max_size=30), st.text("ab", min_size=1, max_size=3))
def test_a_text_is_located(text: str, wanted: str) -> None:
    if wanted not in text:
        return
    first, stop = locate_text("".join, list(text), wanted)
    at = text.index(wanted)
    assert (first, stop) == (at, at + len(wanted))


@pytest.mark.slow
def test_four_shelves(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Books, code, wiki and short pages: targets follow inputs, and each shelf has its share."""
    shelves = {"books": 0.4, "code": 0.1, "wiki": 0.3, "short": 0.2}
    files = {
        "books": "books.jsonl.gz",
        "code": "code-1.jsonl.gz",
        "wiki": "wiki.jsonl.zst",
        "short": "short.jsonl.gz",
    }
    zstandard = pytest.importorskip("zstandard")
    with (shared_data / files["wiki"]).open("rb") as packed:
        text = zstandard.ZstdDecompressor().stream_reader(packed).read(2_000_000)
    (tmp_path / "wiki.jsonl").write_bytes(text[: text.rindex(b"\n") + 1])
    for name, file in files.items():
        path = tmp_path / "wiki.jsonl" if name == "wiki" else shared_data / file
        convert(str(path), output=tmp_path / "d", source=name, tokenizer="bytes", workers=1)
    config = tmp_path / "run.yaml"
    fields = {
        "dataset": str(tmp_path / "d"),
        "pack": {"seq_len": 1024},
        "curriculum": {"rows": 100, "mix": shelves},
        "loader": {"batch_size": 10},
    }
    config.write_text(yaml.safe_dump(fields))
    opened = jaxdata.open_dataset(tmp_path / "d")
    tokens = dict.fromkeys(shelves, 0)
    for step, batch in enumerate(jaxdata.load(config)):
        pieces = asked(capsys, "--config", config, "--step", step)["pieces"]
        for piece in pieces:
            row, (first, stop) = piece["row_in_batch"], piece["slots"]
            inputs, targets = (batch[k][row][first:stop] for k in ("inputs", "targets"))
            assert inputs[1:].tolist() == targets[:-1].tolist()
            held = opened.source("train", piece["source"])[piece["document"]]["tokens"]
            assert [*inputs.tolist(), targets[-1]] == held[slice(*piece["tokens"])].tolist()
            tokens[piece["source"]] += int(batch["loss_mask"][row][first:stop].sum())
    assert step == 9
    total = sum(tokens.values())
    for name, planned in shelves.items():
        with capsys.disabled():
            print(f"\n{name}: planned {planned:.1%}, actual {tokens[name] / total:.3%}", end="")
        assert tokens[name] / total == pytest.approx(planned, abs=0.01)
