"""`jaxdata trace`: what it says of a batch, and of a document, is what was really emitted."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.config import build_rows, load_config
from jaxdata.packing.planner import Planner
from jaxdata.packing.settings import PackSettings
from tests.converter.here import convert_here
from tests.look.trace.conftest import TEXTS, Place, asked, emitted, told


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


@given(st.integers(1, 300), st.booleans(), st.data())
def test_the_place_of_a_document_is_the_inverse_of_dealing(
    count: int, shuffle: bool, data: st.DataObject
) -> None:
    documents = jaxdata.ArrayDocuments([[1, 2]] * count)
    settings = PackSettings(4, shuffle=shuffle)
    order = Planner(documents, settings).order
    shuffled = order.documents_of((0, count)).tolist()
    document = data.draw(st.integers(0, count - 1))
    assert shuffled[order.position(document)] == document


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
        convert_here(str(path), output=tmp_path / "d", source=name, tokenizer="bytes", workers=1)
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
