"""`jaxdata dedup --where`: expressions over fields, weights, scores from files, what it says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.views import selecting
from jaxdata.dataset.views.expressions import Expression
from jaxdata.dataset.views.selecting import DocumentFields, Scores, _Selection, copies_of
from tests.commands import run as command
from tests.dataset.views.made import convert_records, kept

RECORDS = [
    {
        "id": f"k{n}",
        "lang": ["en", "de", None][n % 3],
        "score": [0.25, 1, None, 0.75][n % 4],
        "meta": {"url": f"https://{'news' if n % 2 else 'blog'}.example/{n}"},
        "weight": (n % 9) / 4,
    }
    for n in range(48)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keep = ["id", "lang", "score", "meta.url", "weight"]
    return convert_records(tmp_path_factory.mktemp("select"), RECORDS, keep=keep)


def chosen(folder: Path, **given: object) -> list[int]:
    jaxdata.select(folder, "t", **given)
    return kept(folder, "t").document.tolist()


KEPT: Any = [
    {"n": 1, "t": "a", "m": {"o": 5, "p": {"q": 1}}},
    {"n": None, "m": None},
    {"a.b": 3, "m": {}},
]


def docs_of(
    keep: list[str] | None = None, lengths: list[int] | None = None, name: str = "train/web"
) -> Any:
    """A converted source, of which only its index is known."""
    lengths = lengths or [4, 2, 3]
    files = np.arange(len(lengths), dtype=np.uint32) % 2
    entry = SimpleNamespace(parameters={"keep": keep} if keep else {}, inputs=["i0", "i1"])
    records = SimpleNamespace(
        lengths=np.array(lengths, np.uint32), entry=entry, kept=lambda a, b: KEPT[a:b],
        column={"origin_file": files}.__getitem__,
    )  # fmt: skip
    docs = Sized(name=name, entry=entry, index=records, store=SimpleNamespace(url="u"))
    docs.fingerprint = f"f-{name}"
    return docs


class Sized(SimpleNamespace):
    base = property(lambda self: self)

    def __len__(self) -> int:
        return len(self.index.lengths)


def scores_of(key: str | None = None, **columns: list[Any]) -> Scores:
    found = object.__new__(Scores)
    found.path, found.key, found.sha256 = SimpleNamespace(name="s"), key, "sum"  # type: ignore[assignment]
    found._columns = {name: pa.array(values) for name, values in columns.items()}
    found._keys = found._columns[key] if key else None
    return found


def test_fields_are_of_scores_then_kept_then_built_in() -> None:
    scores = scores_of(score=[1, 2, 3], t=[7, 8, 9])
    fields = DocumentFields(docs_of(["n", "t", "m", "a.b"]), scores)
    names = ["n", "t", "m.o", "m.p.q", "a.b", "tokens", "document", "source", "file", "score"]
    found = {name: values.to_pylist() for name, values in fields.of(names, slice(1, 3)).items()}
    assert found == {
        "n": [None, None], "t": [8, 9], "m.o": [None, None], "m.p.q": [None, None],
        "a.b": [None, 3], "tokens": [2, 3], "document": [1, 2], "source": ["web"] * 2,
        "file": ["i1", "i0"], "score": [2, 3],
    }  # fmt: skip
    first = fields.of(["m.o", "m.p.q", "n"], slice(0, 1))
    assert {name: each[0].as_py() for name, each in first.items()} == {"m.o": 5, "m.p.q": 1, "n": 1}
    fields.check(["n", "m.x.y", "score", "file"], "--where")
    own = r"tokens, document, source, file \(built in\)"
    kept_, scored = r"n, t, m, a.b \(kept\), ", r"score, t \(of the scores\), "
    with pytest.raises(
        InputError, match=f"'toke', which .*it has {scored}{kept_}{own}; did you me"
    ):
        fields.check(["toke", "n"], "--where")
    with pytest.raises(InputError, match=rf"--weight names .*has {own} \(jaxdata convert --keep"):
        DocumentFields(docs_of()).check(["zzz"], "--weight")


def test_fields_that_cannot_be_read_are_named() -> None:
    docs = docs_of(["n", "m"])
    with pytest.raises(InputError, match=r"field 'm\.o\.x' of train/web has values of different"):
        DocumentFields(docs).of(["m.o.x"], slice(0, 1))
    docs.index.kept = lambda a, b: [{"n": 1}, {"n": "a"}]
    with pytest.raises(InputError, match=r"'n' of train/web has values .* in documents 1 to 2"):
        DocumentFields(docs).of(["n"], slice(1, 3))
    docs.index.column("origin_file")[1] = 2
    DocumentFields(docs).of(["file"], slice(0, 1))
    with pytest.raises(DatasetError, match="u: the index of train/web names more files than there"):
        DocumentFields(docs).of(["file"], slice(0, 2))


def selection(where: str | None = None, weight: str | None = None, **given: Any) -> _Selection:
    made: dict[str, Any] = {"scores": None, "seed": 3}
    made |= {"where": where and Expression(where, "--where")}
    made |= {"weight": weight and Expression(weight, "--weight")}
    return _Selection(**made | given)


@given(
    st.lists(st.sampled_from([None, 0, 1, 2]), min_size=1, max_size=7),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.3]), min_size=7, max_size=7),
    st.booleans(),
    st.booleans(),
)
def test_a_selection_is_made_document_by_document(
    values: list[Any], weights: list[float], chooses: bool, weighs: bool
) -> None:
    docs = docs_of(lengths=[1] * len(values))
    scores = scores_of(v=pa.array(values, pa.int64()), w=weights[: len(values)])
    asked = selection("v > 1" if chooses else None, "w" if weighs else None, scores=scores)
    reasons, copies = {}, []
    for number, value in enumerate(values):
        kept = not chooses or (value or 0) > 1
        weight, where = np.array([weights[number] if kept else 1.0]), np.array([number])
        copies += copies_of(weight, where, seed=3, source="train/web").tolist()
        if not kept:
            reasons[number] = "where is unknown" if value is None else "where"
        elif weighs and not copies[-1]:
            reasons[number] = "weight"
    for at_once in (2, 3, 100):
        progress = mock.Mock()
        with mock.patch.object(selecting, "_AT_ONCE", at_once):
            view = asked.views([docs], progress)["train/web"]
        names = [view.reasons[each] for each in view.reason]
        assert dict(zip(view.dropped.tolist(), names, strict=True)) == reasons
        assert (None if view.copies is None else view.copies.tolist()) == (
            copies if weighs else None
        )
        edges = [*range(at_once, len(values), at_once), len(values)]
        assert progress.mock_calls == [mock.call(edge, len(values)) for edge in edges]


def test_impossible_weights_and_conditions_are_named() -> None:
    def said(docs: list[Any] | None = None, **given: Any) -> str:
        with pytest.raises(InputError) as error:
            selection(**given).views(docs or [docs_of()], lambda *_: None)
        return str(error.value)

    scores = scores_of(v=[1.0, None, 3.0], w=[1.0, 2.0, -0.5], m=[1.0, 10_000.5, -1.0])
    tail = " of train/web: expected 0 to 10,000; --where can leave out documents without a weight"
    for name, value, number in (("v", "unknown", 1), ("w", "-0.5", 2), ("m", "10000.5", 1)):
        wrong = f"--weight {name!r} is {value} for document {number}{tail}"
        assert said(weight=name, scores=scores) == wrong
    assert said(weight="tokens > 1") == "--weight 'tokens > 1' is of type bool: expected a number"
    assert said(where="tokens") == (
        "--where 'tokens' is of type int64: expected true or false, such as score > 0.7"
    )
    assert said(where="none").startswith("--where names the field 'none'")
    assert said(weight="none").startswith("--weight names the field 'none'")
    assert said(scores=scores_of("id", id=[1])).startswith("--scores-key names the field 'id'")
    both = [docs_of(name="train/a"), docs_of(name="train/b")]
    assert "in order, of one source" in said(both, where="v > 1", scores=scores_of(v=[1, 2, 3]))
    edge = selection(weight="w", scores=scores_of(w=[0.0, 10_000.0, 1.0]))
    both = [docs_of(), docs_of(name="train/b")]
    assert edge.scores is not None
    edge.scores.key = "document"  # for two sources they have a key
    edge.scores._keys = pa.array([0, 1, 2])
    progress = mock.Mock()
    views = edge.views(both, progress)
    assert progress.mock_calls == [mock.call(3, 6), mock.call(6, 6)]
    copies = [view.copies.tolist() for view in views.values()]  # type: ignore[union-attr]
    assert copies == [[0, 10_000, 1]] * 2
    unknown = selection("None").views([docs_of()], lambda *_: None)["train/web"]
    assert unknown.reason.tolist() == [1] * 3


def test_documents_that_a_lower_view_dropped_need_no_weight(folder: Path) -> None:
    jaxdata.select(folder, "scored", where="score is not None")
    jaxdata.select(folder, "t", weight="score * 2", documents="scored")
    assert kept(folder, "t").view.fate(2).reason == "where"


def test_scores_of_files(folder: Path, tmp_path: Path) -> None:
    values = np.linspace(0, 1, len(RECORDS))
    expected = np.flatnonzero(values > 0.8).tolist()
    np.save(tmp_path / "s.npy", values)
    order = np.random.default_rng(0).permutation(len(RECORDS))
    table = {"id": [f"k{n}" for n in order], "quality": values[order]}
    pq.write_table(pa.table(table), tmp_path / "s.parquet", row_group_size=7)
    lines = [json.dumps({"document": int(n), "quality": float(values[n])}) for n in order[:40]]
    (tmp_path / "s.jsonl").write_text("\n".join(lines))
    assert chosen(folder, scores=tmp_path / "s.npy", where="score > 0.8") == expected
    by_id = {"scores": tmp_path / "s.parquet", "scores_key": "id"}
    assert chosen(folder, where="quality > 0.8", **by_id) == expected
    by_number = {"scores": tmp_path / "s.jsonl", "scores_key": "document"}
    assert chosen(folder, where="quality > 0.8", **by_number) == sorted(
        set(expected) & set(order[:40].tolist())
    )
    made = jaxdata.select(folder, "t", where="quality > 0.8", weight="quality", seed=4, **by_id)
    assert made["train/web"].parameters == {
        "command": "select", "where": "quality > 0.8", "weight": "quality", "seed": 4,
        "scores": "s.parquet", "scores_key": "id", "scores_sha256": made["train/web"].parameters[
            "scores_sha256"
        ],
    }  # fmt: skip
    plain = jaxdata.select(folder, "t", where="tokens > 1")["train/web"]
    assert plain.parameters == {"command": "select", "where": "tokens > 1"}


def test_wrong_scores_are_named(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.save(tmp_path / "square.npy", np.zeros((48, 2)))
    np.save(tmp_path / "texts.npy", np.array(["a"] * 48))
    (tmp_path / "twice.jsonl").write_text('{"id": "k1"}\n{"id": "k1"}\n')
    (tmp_path / "number.jsonl").write_text('{"id": 1, "quality": 2}\n')
    (tmp_path / "bad.jsonl").write_text("1\n")
    cases = [
        ("short.npy", None, "has 3 rows, train/web 48 documents: expected one a document, in"),
        ("objects.npy", None, "cannot be read: .*allow_pickle"),
        ("square.npy", None, r"an array of shape \(48, 2\) and float64, not a row of numbers"),
        ("texts.npy", None, r"an array of shape \(48,\) and <U1, not a row of numbers"),
        ("bad.jsonl", None, "cannot be read"),
        ("s.csv", None, r"expected a file \*.parquet, \*.npy, \*.jsonl"),
        ("twice.jsonl", "id", "two of its rows have the same 'id'"),
        ("twice.jsonl", "url", "has no such column, only id"),
        ("number.jsonl", "id", "it is of type int64 in .*, and of string in the documents"),
    ]
    for name, key, message in cases:
        with pytest.raises(InputError, match=message):
            jaxdata.select(
                folder,
                "t",
                where="quality > 1" if key else "score > 1",
                scores=tmp_path / name,
                scores_key=key,
            )


def test_the_command_makes_shows_and_removes_a_view(folder: Path) -> None:
    make = ("dedup", folder, "--output-name", "good", "--sources", "web", "--where")
    said = command(*make, "lang == 'en'").stdout
    assert "kept 16 of 48 documents" in said
    assert "documents: good in a config" in said
    assert "view good: command select, where lang == 'en'" in command("inspect", folder).stdout
    assert "did you mean 'lang'?" in command(*make, "lagn == 'en'", status=1).stderr
    remove = ("dedup", folder, "--remove", "good", "--sources", "web")
    assert "view good of train/web is removed" in command(*remove).stdout
    assert "has no view 'good'" in command(*remove, status=1).stderr


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (
            "--where tokens --threshold .5 --output-name a",
            "--where chooses documents by fields, and takes no --threshold: make two views, the "
            "second of the first (--documents VIEW)",
        ),
        (
            "--show d1 --output-name d2",
            "--show shows examples of a view, and takes no --output-name: leave it out",
        ),
        ("--where tokens", "give --output-name NAME to make a view, or --show VIEW to look"),
    ],
)
def test_ways_to_make_a_view_are_not_mixed(folder: Path, typed: str, says: str) -> None:
    assert f"Error: {says}\n" in command("dedup", folder, *typed.split(), status=2).stderr


def test_an_expression_chooses_by_kept_and_built_in_fields(folder: Path) -> None:
    where = "(lang == 'en' or 'news' in meta.url) and document > 5 and file.endswith('.jsonl')"
    expected = [n for n in range(6, 48) if n % 3 == 0 or n % 2]
    assert chosen(folder, where=where) == expected
