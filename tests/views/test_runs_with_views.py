"""Runs that read views: configs, states, traces, previews, and everything behind a loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.cli import main
from jaxdata.errors import ConfigError, DatasetError, InputError, StateMismatch
from jaxdata.format.mirroring import mirror
from jaxdata.format.verify import verify
from jaxdata.look.explanation import Explanation
from jaxdata.look.trace import Tracer
from jaxdata.report.samples import sample_documents
from jaxdata.testing import assert_exactly_once, distinct_documents, prove, write_dataset
from jaxdata.testing.buckets import bucket_server
from jaxdata.views.source_view import SourceView
from tests.format.buckets.conftest import use
from tests.views.made import convert_records, dropping, kept, masking, write

LENGTHS = [4 + n % 9 for n in range(80)]
DROPPED = [*range(0, 80, 4), 79]
COPIES = np.where(np.arange(80) % 5 == 1, 3, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two training sources, of which `web` has the view d1, and `wiki` none."""
    documents = distinct_documents(LENGTHS)
    sources = {"train/web": documents, "train/wiki": documents[:40], "val/web": documents[:9]}
    write_dataset(tmp_path / "d", sources, shard_documents=30)
    view = SourceView(
        documents=80,
        dropped=np.array(DROPPED),
        reasons=["near", "benchmark"],
        survivor_source=np.zeros(len(DROPPED), np.int32),
        survivor=np.full(len(DROPPED), 1),
        survivors=["train/web"],
        copies=COPIES,
        masked=masking((1, 0, 3), (6, 2, 5)),
    )
    write(tmp_path / "d", view)
    return tmp_path / "d"


def config(folder: Path, **fields: Any) -> dict[str, Any]:
    return {
        "dataset": str(folder),
        "pack": {"seq_len": 16, "order": 2},
        "curriculum": {"rows": 30, "mix": {"web": 1.0}},
        "loader": {"batch_size": 3, "prefetch": 0},
        **fields,
    }


def whole_epoch(folder: Path, **fields: Any) -> Any:
    return jaxdata.load(config(folder, curriculum=None, **fields))


@pytest.mark.parametrize("hosts", [1, 3])
def test_an_epoch_has_each_listed_copy_once(folder: Path, hosts: int) -> None:
    documents = {"documents": {"web": "d1"}}
    given = config(folder, curriculum=None, **documents)
    parts = [jaxdata.load(given, shard=(host, hosts)) for host in range(hosts)]
    wiki = jaxdata.open_dataset(folder).source("train", "wiki")
    assert_exactly_once((batch for part in parts for batch in part), [kept(folder), wiki])


def test_the_loader_proves_its_promises_on_a_view(folder: Path) -> None:
    def open_loader(shard: tuple[int, int] = (0, 1), num_workers: int = 0) -> Any:
        loader = {"num_workers": num_workers, "batch_size": 4}
        return jaxdata.load(config(folder, documents="d1"), shard=shard, loader=loader)

    for proof in prove(open_loader, steps=3, seed=0):
        assert proof.holds, f"{proof.name}: {proof.says}"


def test_a_config_names_views_for_all_some_or_one_of_several(folder: Path) -> None:
    assert whole_epoch(folder, documents={"web": "d1"}).get_state()["run"]["views"] == {"web": "d1"}
    with pytest.raises(InputError, match=r"train/wiki of .* has no view 'd1': it has none"):
        whole_epoch(folder, documents="d1")
    assert jaxdata.load(config(folder), documents="d1")  # wiki is not trained
    with pytest.raises(ConfigError, match="documents names the source 'wbe'"):
        whole_epoch(folder, documents={"wbe": "d1"})
    with pytest.raises(ConfigError, match="documents"):
        whole_epoch(folder, documents=3)
    several = {
        "dataset": None,
        "sources": {"one": {"dataset": str(folder), "source": "web", "documents": "d1"}},
    }
    several["sources"]["two"] = {"dataset": str(folder), "source": "web"}
    loader = jaxdata.load(config(folder) | several | {"curriculum": None})
    all_of_it = jaxdata.open_dataset(folder).source("train", "web")
    assert_exactly_once(loader, [kept(folder), all_of_it])
    top = jaxdata.load(config(folder) | several | {"curriculum": None, "documents": "d1"})
    assert top.get_state()["run"]["views"] == {"one": "d1", "two": "d1"}


def test_validation_reads_all_documents(folder: Path) -> None:
    evaluated = jaxdata.load(config(folder, documents="d1"), split="val")
    assert_exactly_once(evaluated, [jaxdata.open_dataset(folder).source("val", "web")])


def test_a_state_is_of_its_view(folder: Path) -> None:
    without, with_view = (jaxdata.load(config(folder, documents=d)) for d in (None, "d1"))
    for loader in (without, with_view):
        next(loader)
    states = without.get_state(), with_view.get_state()
    assert "views" not in states[0]["run"]
    with pytest.raises(StateMismatch) as refused:
        jaxdata.load(config(folder)).set_state(states[1])
    said = str(refused.value)
    assert "views[web] was 'd1', is absent: read the view that the run is of" in said
    assert "in a config documents: d1" in said
    assert "data[web]" not in said  # it follows from the view
    with pytest.raises(StateMismatch, match=r"views\[web\] was absent, is 'd1': read all its docu"):
        jaxdata.load(config(folder, documents="d1")).set_state(states[0])
    write(folder, dropping(80, 5))  # the same name, made again
    with pytest.raises(StateMismatch, match=r"data\[web\] was"):
        jaxdata.load(config(folder, documents="d1")).set_state(states[1])


def test_a_run_that_was_under_way_goes_on_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_dataset(folder, {"train/web": distinct_documents(LENGTHS)})
    begun = jaxdata.load(config(folder))
    for _ in range(4):
        next(begun)
    state, rest = json.loads(json.dumps(begun.get_state())), [*begun]
    write(folder, dropping(80, *DROPPED))
    resumed = jaxdata.load(config(folder))
    resumed.set_state(state)
    for batch, expected in zip(resumed, rest, strict=True):
        for name, array in expected.items():
            assert np.array_equal(batch[name], array), name


def test_amended_runs_repack_what_is_left_of_a_view(folder: Path) -> None:
    docs = kept(folder)
    packed = jaxdata.pack(docs, seq_len=16, order=2)
    wider = jaxdata.pack(docs, seq_len=24, order=2)
    mixed = jaxdata.mix({"web": packed}, weights={"web": 1.0}).amend(11, rows={"web": wider})
    loader = jaxdata.Loader(mixed, batch_size=1, prefetch=0, extras=["document"])
    batches = list(loader)
    assert_exactly_once(batches, [docs])
    listed = set(docs.document.tolist())
    assert {n for batch in batches for n in np.unique(batch["document"])} - {-1} == listed


def test_traces_have_numbers_of_the_source(folder: Path) -> None:
    loader = jaxdata.load(config(folder, documents="d1", curriculum={"mix": {"web": 1.0}}))
    dataset = jaxdata.open_dataset(folder)
    run = Explanation(loader, dataset, resumed=False)
    found = run.documents([("train/web", 6), ("web", 4), ("web", 2)], None, 9)["documents"]
    assert found[0]["view"]["copies"] == 3
    assert found[0]["view"]["masked"] == [{"start": 2, "stop": 5, "reason": "benchmark"}]
    assert len(found[0]["pieces"]) >= 3
    tokens = dataset["train/web"][6]["tokens"]
    for piece in found[0]["pieces"]:
        row = loader.rows[piece["row"]]
        first, stop = piece["slots"]
        a, b = piece["tokens"]
        assert row["inputs"][first:stop].tolist() == tokens[a:b][: stop - first].tolist()
    assert (found[1]["pieces"], found[1]["view"]["reason"]) == ([], "near")
    assert found[1]["view"]["survivor"] == ("train/web", 1)
    assert found[2]["view"]["copies"] == 1
    assert run.batch(0, None)["pieces"]
    for piece in run.batch(2, None)["pieces"]:
        assert piece["document"] not in DROPPED
        assert piece["origin"]["line"] is not None or piece["origin"]["file"] is not None


@pytest.mark.parametrize("amended", [False, True])
def test_a_trace_names_no_token_that_a_view_cuts(tmp_path: Path, amended: bool) -> None:
    """With `concat` a document's last token is an input, whose target is nobody's."""
    documents = distinct_documents([12] * 10)
    write_dataset(tmp_path, {"train/web": documents})
    write(tmp_path, dropping(10, 0, 5, cut=masking((3, 4, 8), (7, 0, 3), (9, 11, 12))))
    docs = kept(tmp_path)
    table = jaxdata.pack(docs, seq_len=8, strategy="concat")
    if amended:
        wider = jaxdata.pack(docs, seq_len=10, strategy="concat")
        table = jaxdata.mix({"web": table}, weights={"web": 1.0}).amend(3, rows={"web": wider})
    loader = jaxdata.Loader(table, batch_size=1, prefetch=0)
    tracer = Tracer(loader, None)
    for step, batch in enumerate(loader):
        for piece in tracer.rows(tracer.batch(step).tolist()):
            first, stop = piece.slots
            slots = [batch["inputs"][0][first:stop], batch["targets"][0][first:stop]]
            in_row = {*np.concatenate(slots).tolist()} - {0}
            assert in_row == {*documents[piece.document][slice(*piece.tokens)].tolist()} - {0}


def test_samples_have_numbers_and_origins_of_the_source(tmp_path: Path) -> None:
    texts = ["dropped", "kept as it is", "begins here; goes on", "the last"]
    folder = convert_records(tmp_path, [{"text": text} for text in texts], keep=["text"])
    write(folder, dropping(4, 0, cut=masking((2, 0, 13))))
    found = sample_documents("train/web", kept(folder), None, 8)
    assert [(each.document, each.first, each.length) for each in found] == [
        (1, 0, 14), (2, 13, 8), (3, 0, 9),
    ]  # fmt: skip
    assert [each.origin for each in found] == [f"records.jsonl line {n}" for n in (2, 3, 4)]
    assert [each.kept["text"] for each in found] == texts[1:]
    page = tmp_path / "r.html"
    with pytest.raises(SystemExit):
        main(["report", str(folder), "--documents", "d1", "-o", str(page)])
    assert "train/web:2<small>8 tokens from token 13 on, from" in page.read_text()


def test_errors_have_numbers_of_the_source(tmp_path: Path) -> None:
    write_dataset(tmp_path, {"train/web": [[5, 0], [6, 0], [7, 0, 8, 0], [9, 0]]})
    write(tmp_path, dropping(4, 0))
    says = "document 2 of train/web does not end with its only EOD"
    with pytest.raises(InputError, match=says):
        jaxdata.export(kept(tmp_path), tmp_path / "x.bin", format="nanogpt", eod_id=0)
    masks = [[0, 1], [0, 1], [0, 0, 0, 1], [0, 1]]
    prompts = [[5, 0], [6, 0], [7, 7, 8, 0], [1, 0]], [[5, 0], [6, 0], [7, 9, 8, 0], [1, 0]]
    names = ["train/p/chosen", "train/p/rejected"]
    folder = tmp_path / "pairs"
    write_dataset(folder, dict(zip(names, prompts, strict=True)), dict.fromkeys(names, masks))
    for name in names:
        write(folder, dropping(4, 0), source=name)
    rows = jaxdata.pairs(*(kept(folder, source=n[6:]) for n in names), seq_len=8, shuffle=False)
    with pytest.raises(DatasetError, match="document 2 of train/p/chosen and 2 of train/p/reject"):
        rows[1]


def test_side_arrays_go_with_their_documents(tmp_path: Path) -> None:
    """An array beside the tokens, equal to them: a batch has the same in both places."""
    ids = [list(range(10 * n + 1, 10 * n + 4 + n % 5)) for n in range(20)]
    text = tmp_path / "ids.jsonl"
    text.write_text("".join(json.dumps({"input_ids": one, "twin": one}) + "\n" for one in ids))
    task = {"task": "ids", "keep_per_token": "twin:int16", "tokenizer": "bytes", "workers": 1}
    jaxdata.convert(text, output=tmp_path / "d", source="web", **task)
    write(tmp_path / "d", dropping(20, 0, 3, 7, copies=np.arange(20) % 2 + 1))
    docs = kept(tmp_path / "d")
    for number, document in enumerate(docs.document.tolist()):
        assert docs[number]["twin"].tolist() == docs.base[document]["twin"].tolist()
    rows = jaxdata.pack(docs, seq_len=16)
    for batch in jaxdata.Loader(rows, batch_size=2, prefetch=0, extras=["twin"]):
        filled = batch["segment_ids"] > 0
        twins = batch["twin"][filled] == batch["inputs"][filled]
        assert twins[batch["inputs"][filled] < 256].all()


def test_the_commands_name_views(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = convert_records(tmp_path, [{"lang": "en"}] * 30, keep=["lang"])
    write(folder, dropping(30, 3, 4, cut=masking((6, 3, 5))))
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config(folder, curriculum={"rows": 20, "mix": {"web": 1.0}})))

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--documents", "d1"])
        assert not ended.value.code
        return capsys.readouterr().out

    said = run("preview", str(path))
    assert "left out of web: 2 dropped by view d1: near" in said
    assert "web is read through view d1, which lists 29 documents" in said
    assert "ok      views     1 list of kept documents, as written" in said
    traced = run("trace", str(path), "--document", "train/web:3")
    assert "not trained with view d1: near" in traced
    assert "in no row" not in traced
    assert "web:3  " in run("trace", str(path), "--find", "document 3")
    shown = run("inspect", str(folder), "--document", "train/web:3")
    assert "not trained with view d1: near" in shown
    assert "document 3" in shown
    exported = ("export", str(folder), "--format", "megatron", "--output", str(tmp_path / "m"))
    assert "29 documents" in run(*exported)
    again = jaxdata.open_dataset(f"megatron:{tmp_path / 'm'}").source("train", "m")
    assert [d["tokens"].tolist() for d in again] == [d["tokens"].tolist() for d in kept(folder)]
    flat = ("export", str(folder), "--format", "nanogpt", "--output", str(tmp_path / "n.bin"))
    with pytest.raises(SystemExit) as ended:
        main([*flat, "--documents", "d1"])
    assert ended.value.code == 1
    assert "does not end with" in capsys.readouterr().err
    run("materialize", str(path), "--output", str(tmp_path / "rows"))
    loader = jaxdata.load(str(path), documents="d1")
    rows = jaxdata.open_rows(tmp_path / "rows")
    assert len(rows) == len(loader.rows)
    for number in range(len(rows)):
        assert rows[number]["inputs"].tolist() == loader.rows[number]["inputs"].tolist()
    assert "ok      contents" in run("selftest", str(path), "--steps", "2")
    column = next((folder / "train/web/views/d1").rglob("reason/c/0"))
    column.write_bytes(b"\1" + column.read_bytes()[1:])
    with pytest.raises(SystemExit):
        main(["preview", str(path), "--documents", "d1"])
    said = capsys.readouterr().out
    assert "FAILED  views" in said
    assert "reason: its content differs from its checksum" in said


@pytest.mark.parametrize("kind", ["gs", "s3"])
def test_a_view_in_a_bucket_is_that_of_the_folder(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "cache"))
    with bucket_server(kind) as server:
        use(server, monkeypatch)
        url = server.url("bucket/d")
        mirror(folder, url)
        expected = [*jaxdata.load(config(folder, documents="d1"))]
        for batch, other in zip(jaxdata.load(config(url, documents="d1")), expected, strict=True):
            for name, array in other.items():
                assert np.array_equal(batch[name], array), name
        write(url, dropping(80, 5), "there")
        write(folder, dropping(80, 5), "there")
        assert kept(url, "there").fingerprint == kept(folder, "there").fingerprint
        assert (
            kept(url, "there")[7]["tokens"].tolist() == kept(folder, "there")[7]["tokens"].tolist()
        )
        assert verify(url).whole
