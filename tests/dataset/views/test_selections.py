"""Fields of documents, and what expressions over them choose, one document at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.views import selecting
from jaxdata.dataset.views.expressions import Expression
from jaxdata.dataset.views.score_files import Scores
from jaxdata.dataset.views.selecting import DocumentFields, _Selection, copies_of
from jaxdata.dataset.views.source_view import SourceView

KEPT = [
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
        lengths=np.array(lengths, np.uint32), origin_file=files, entry=entry,
        kept_between=lambda a, b: KEPT[a:b],
    )  # fmt: skip
    docs = Sized(name=name, entry=entry, index=records, store=SimpleNamespace(url="u"))
    docs.fingerprint = f"f-{name}"
    return docs


class Sized(SimpleNamespace):
    @property
    def base(self) -> Sized:
        return self

    def __len__(self) -> int:
        return len(self.index.lengths)


def scores_of(key: str | None = None, **columns: list[Any]) -> Scores:
    found = object.__new__(Scores)
    found.path, found.key, found.sha256 = SimpleNamespace(name="s"), key, "sum"  # type: ignore[assignment]
    found._columns = {name: pa.array(values) for name, values in columns.items()}
    found._keys = found._columns[key] if key else None
    return found


def test_fields_are_of_scores_then_kept_then_built_in() -> None:
    fields = DocumentFields(
        docs_of(["n", "t", "m", "a.b"]), scores_of(score=[1, 2, 3], t=[7, 8, 9])
    )
    names = ["n", "t", "m.o", "m.p.q", "a.b", "tokens", "document", "source", "file", "score"]
    found = {name: values.to_pylist() for name, values in fields.of(names, 1, 3).items()}
    assert found == {
        "n": [None, None], "t": [8, 9], "m.o": [None, None], "m.p.q": [None, None],
        "a.b": [None, 3], "tokens": [2, 3], "document": [1, 2], "source": ["web"] * 2,
        "file": ["i1", "i0"], "score": [2, 3],
    }  # fmt: skip
    first = fields.of(["m.o", "m.p.q", "n"], 0, 1)
    assert {name: each[0].as_py() for name, each in first.items()} == {"m.o": 5, "m.p.q": 1, "n": 1}
    assert fields.of(["tokens"], 0, 1)["tokens"].type == pa.int64()
    fields.check(["n", "m.x.y", "score", "file"], "--where")
    with pytest.raises(InputError) as unknown:
        fields.check(["toke", "n"], "--where")
    assert str(unknown.value) == (
        "--where names the field 'toke', which train/web does not have: it has score, t (of the "
        "scores), n, t, m, a.b (kept), tokens, document, source, file (built in); did you mean "
        "'tokens'?"
    )
    plain = DocumentFields(docs_of(), None)
    with pytest.raises(InputError) as unknown:
        plain.check(["zzz"], "--weight")
    assert str(unknown.value) == (
        "--weight names the field 'zzz', which train/web does not have: it has tokens, document, "
        "source, file (built in) (jaxdata convert --keep keeps fields)"
    )


def test_fields_that_cannot_be_read_are_named() -> None:
    docs = docs_of(["n", "m"])
    with pytest.raises(
        InputError, match=r"there is no field 'm\.o\.x' in train/web: what it names a"
    ):
        DocumentFields(docs, None).of(["m.o.x"], 0, 1)
    docs.index.kept_between = lambda a, b: [{"n": 1}, {"n": "a"}]
    with pytest.raises(InputError) as mixed:
        DocumentFields(docs, None).of(["n"], 1, 3)
    assert str(mixed.value).startswith(
        "field 'n' of train/web has values of different types in documents 1 to 2 ("
    )
    docs.index.origin_file[1] = 2
    DocumentFields(docs, None).of(["file"], 0, 1)
    with pytest.raises(DatasetError) as damaged:
        DocumentFields(docs, None).of(["file"], 0, 2)
    assert str(damaged.value) == (
        "u: the index of train/web names more files than there are; jaxdata verify names what is "
        "damaged"
    )


def test_scores_are_found_by_their_key() -> None:
    scores = scores_of("id", id=["c", "a"], score=[3, 1])
    docs = docs_of(["id"])
    docs.index.kept_between = lambda a, b: [{"id": each} for each in "abc"][a:b]
    found = DocumentFields(docs, scores).of(["score", "id"], 0, 3)
    assert found["score"].to_pylist() == [1, None, 3]
    assert found["id"].to_pylist() == ["a", "b", "c"]


def selection(where: str | None = None, weight: str | None = None, **given: Any) -> _Selection:
    made: dict[str, Any] = {
        "scores": None,
        "documents": None,
        "seed": 3,
        "progress": lambda a, b: None,
    }
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
    scores = scores_of(v=pa.array(values, pa.int64()), w=weights[: len(values)])
    docs, said = docs_of(lengths=[1] * len(values)), list[tuple[int, int]]()
    asked = selection(
        "v > 1" if chooses else None, "w" if weighs else None, scores=scores,
        progress=lambda done, total: said.append((done, total)),
    )  # fmt: skip
    reasons, copies = {}, []
    for number, value in enumerate(values):
        reason = None if not chooses else "where is unknown" if value is None else "where"
        kept = not chooses or (value or 0) > 1
        one = copies_of(
            np.array([weights[number] if kept else 1.0]), np.array([number]), seed=3,
            source="train/web",
        )  # fmt: skip
        copies.append(int(one[0]))
        if not kept:
            reasons[number] = reason
        elif weighs and not copies[-1]:
            reasons[number] = "weight"
    with pytest.MonkeyPatch.context() as patch:
        for at_once in (2, 3, 100):
            said.clear()
            patch.setattr(selecting, "_AT_ONCE", at_once)
            views, made_of = asked.of([docs])
            [view] = views.values()
            names = [view.reasons[each] for each in view.reason_of_each]
            assert dict(zip(view.dropped.tolist(), names, strict=True)) == reasons
            assert (None if view.copies is None else view.copies.tolist()) == (
                copies if weighs else None
            )
            edges = [*range(at_once, len(values), at_once), len(values)]
            assert said == [(edge, len(values)) for edge in edges]
            nothing, _ = selection("1 > 2").of([docs])
            assert nothing["train/web"].dropped.tolist() == [*range(len(values))]
    assert made_of == {"train/web": "f-train/web"}


def test_progress_is_of_all_sources_and_each_has_its_view() -> None:
    said: list[tuple[int, int]] = []
    asked = selection("tokens > 1", progress=lambda done, total: said.append((done, total)))
    views, made_of = asked.of([docs_of(lengths=[1, 2], name="train/a"), docs_of(name="train/b")])
    assert said == [(2, 5), (5, 5)]
    assert {name: view.dropped.tolist() for name, view in views.items()} == {
        "train/a": [0], "train/b": [],
    }  # fmt: skip
    assert made_of == {"train/a": "f-train/a", "train/b": "f-train/b"}


def test_documents_that_a_lower_view_dropped_need_no_weight() -> None:
    lower = SourceView(documents=6, dropped=np.array([1, 3]), reasons=["near"])
    reason = np.array([0, 0, 2, 0], np.uint8)
    assert selecting._without(lower, reason, 1).tolist() == [False, True, False, True]
    assert selecting._without(lower, reason, 2).tolist() == [True, False, False, True]
    assert selecting._without(None, reason, 1).tolist() == [True, True, False, True]


def test_impossible_weights_and_conditions_are_named() -> None:
    def said(**given: Any) -> str:
        with pytest.raises(InputError) as error:
            selection(**given).of([docs_of()])
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
    edge = scores_of(w=[0.0, 10_000.0, 1.0])
    views, _ = selection(weight="w", scores=edge).of([docs_of()])
    assert views["train/web"].copies.tolist() == [0, 10_000, 1]  # type: ignore[union-attr]
    unknown, _ = selection("None").of([docs_of()])
    assert unknown["train/web"].reason_of_each.tolist() == [1] * 3
    with pytest.raises(InputError) as order:
        selection("v > 1", scores=edge).of([docs_of(name="train/a"), docs_of(name="train/b")])
    assert str(order.value).endswith(
        "in the order of documents is for one source, not for train/a, train/b: choose one with "
        "--sources, or name a key with --scores-key"
    )


def test_the_parameters_are_what_decides_a_view() -> None:
    assert selection("tokens > 1").parameters == {"command": "select", "where": "tokens > 1"}
    scores = scores_of("id", id=[1])
    assert selection(weight="w", scores=scores, documents="d1").parameters == {
        "command": "select", "weight": "w", "scores": "s", "scores_sha256": "sum",
        "scores_key": "id", "documents": "d1", "seed": 3,
    }  # fmt: skip
