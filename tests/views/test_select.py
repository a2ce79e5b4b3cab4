"""`jaxdata select`: expressions over fields, weights, scores from files, and what it says."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.cli import main
from jaxdata.errors import InputError
from jaxdata.testing import assert_exactly_once
from jaxdata.views.copies import copies_of
from jaxdata.views.expressions import Expression
from tests.views.made import convert_records, kept

RECORDS = [
    {
        "id": f"k{n}",
        "lang": ["en", "de", None][n % 3],
        "score": [0.25, 1, None, 0.75][n % 4],
        "meta": {"url": f"https://{'news' if n % 2 else 'blog'}.example/{n}"},
        "x-y": n,
        "weight": (n % 9) / 4,
    }
    for n in range(48)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keep = ["id", "lang", "score", "meta.url", "x-y", "weight"]
    return convert_records(tmp_path_factory.mktemp("select"), RECORDS, keep=keep)


def chosen(folder: Path, **given: object) -> list[int]:
    jaxdata.select(folder, "t", **given)
    return kept(folder, "t").document.tolist()


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("lang == 'en' and score > 0.7", lambda r: r["lang"] == "en" and (r["score"] or 0) > 0.7),
        ("lang != 'en'", lambda r: r["lang"] == "de"),
        ("lang in ('en', 'de')", lambda r: r["lang"] is not None),
        ("lang not in ['en']", lambda r: r["lang"] == "de"),
        ("lang is None or score is not None", lambda r: not r["lang"] or r["score"] is not None),
        ("not (lang == 'en')", lambda r: r["lang"] == "de"),
        ("0.2 < score <= 0.75", lambda r: 0.2 < (r["score"] or 0) <= 0.75),
        ("'news' in meta.url", lambda r: "news" in r["meta"]["url"]),
        ("meta.url.startswith('https://blog')", lambda r: "blog" in r["meta"]["url"]),
        ("lang.upper() == 'DE'", lambda r: r["lang"] == "de"),
        ("len(id) == 2", lambda r: len(r["id"]) == 2),
        ("field('x-y') / 2 - 1 >= 10.5", lambda r: r["x-y"] / 2 - 1 >= 10.5),
        ("-score < -0.5", lambda r: (r["score"] or 0) > 0.5),
        ("document < 5 and source == 'web'", lambda r: r["x-y"] < 5),
        ("file.endswith('.jsonl') and tokens > 11", lambda r: r["x-y"] > 9),
        ("score > 0.5 or lang == 'en'", lambda r: (r["score"] or 0) > 0.5 or r["lang"] == "en"),
        ("1 < 2", lambda r: True),
    ],
)
def test_an_expression_chooses_as_python_would(folder: Path, where: str, holds: object) -> None:
    assert chosen(folder, where=where) == [n for n, r in enumerate(RECORDS) if holds(r)]


def test_the_account_tells_unknown_from_false(folder: Path) -> None:
    made = jaxdata.select(folder, "t", where="score > 0.5")["train/web"]
    counts = {reason: each.documents for reason, each in made.account.dropped.items()}
    assert counts == {"where": 12, "where is unknown": 12}
    assert made.account.kept.documents + sum(counts.values()) == len(RECORDS)
    assert made.parameters == {"command": "select", "where": "score > 0.5"}
    assert kept(folder, "t").view.fate(2).reason == "where is unknown"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("scor > 0.7", "names the field 'scor', which train/web does not have.*mean 'score'"),
        ("lang > 3", "'lang > 3' cannot be computed of values of type string and int64"),
        ("score", "is of type double: expected true or false"),
        ("lang ==", "is no expression .invalid syntax.: expected one like"),
        ("", "is no expression"),
        ("__import__('os').system('id')", "cannot be computed; an expression may have"),
        ("(lambda: 1)()", "cannot be computed"),
        ("[l for l in lang]", "cannot be computed"),
        ("lang.__class__ == 'en'", "there is no field 'lang.__class__'"),
        ("lang[0] == 'e'", "cannot be computed"),
        ("score ** 2 > 1", "cannot be computed"),
        ("lang.format('x') == 'en'", "cannot be computed"),
        ("f'{lang}' == 'en'", "cannot be computed"),
        ("(x := score) > 1", "cannot be computed"),
        ("score is 1", "cannot be computed"),
        ("score > " + "1" * 400, "cannot be computed|is no expression"),
        ("(" * 300 + "1" + ")" * 300 + " == 1", "is no expression"),
        ("not " * 3000 + "True", "nested too deep|is no expression"),
        ("x" * 20_000, "more than 10,000 characters"),
        ("meta == 'a'", "names the field 'meta'"),
    ],
)
def test_what_is_no_expression_of_known_forms_is_refused(
    folder: Path, where: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        jaxdata.select(folder, "t", where=where)


texts = st.sampled_from(["lang", "score", "x", "'en'", "1", "None", "(1, 2)"])
expressions = st.recursive(
    texts,
    lambda inner: st.builds(
        "({0} {1} {2})".format,
        inner,
        st.sampled_from(["==", "<", "in", "and", "or", "+", "/", "is", "not in", "**", "@", "if"]),
        inner,
    ),
    max_leaves=8,
)


@given(expressions)
def test_any_text_is_an_expression_or_an_input_error(text: str) -> None:
    fields = {
        "lang": pa.array(["en", None]),
        "score": pa.array([0.5, None]),
        "x": pa.array([None, None]),
    }
    with suppress(InputError):
        found = Expression(text, "--where")
        assert found.names <= fields.keys()
        assert len(found.of(fields, 2)) == 2


def test_values_of_different_types_are_named(tmp_path: Path) -> None:
    mixed = convert_records(tmp_path, [{"score": 1}, {"score": "two"}], keep=["score"])
    with pytest.raises(
        InputError, match="field 'score' of train/web has values of different types"
    ):
        jaxdata.select(mixed, "t", where="score > 1")
    with pytest.raises(InputError, match=r"tokens, document, source, file .built in.$"):
        jaxdata.select(mixed, "t", where="lang == 'en'", sources=["web"])
    nothing = convert_records(tmp_path / "n", [{}])
    with pytest.raises(InputError, match="jaxdata convert --keep keeps fields"):
        jaxdata.select(nothing, "t", where="lang == 'en'")


def test_weights_are_expected_copies(folder: Path) -> None:
    made = jaxdata.select(folder, "t", weight="weight", where="score is not None")["train/web"]
    docs = kept(folder, "t")
    times = np.bincount(docs.document, minlength=len(RECORDS))
    for record, count in zip(RECORDS, times.tolist(), strict=True):
        if record["score"] is None:
            assert count == 0
        else:
            assert int(record["weight"]) <= count <= -(-record["weight"] // 1)
    assert made.account.listed.documents == len(docs) == times.sum()
    assert made.account.kept.documents == (times > 0).sum()
    rows = jaxdata.pack(docs, seq_len=32)
    assert_exactly_once((rows[n] for n in range(len(rows))), [docs])
    assert len(rows) == len(list(rows))  # an epoch has a length
    seeded = [
        jaxdata.select(folder, "t", weight="weight", where="score is not None", seed=seed)
        for seed in (0, 1, 1)
    ]
    fingerprints = [each["train/web"].fingerprint for each in seeded]
    assert fingerprints[0] == made.fingerprint != fingerprints[1] == fingerprints[2]


@given(st.floats(0, 40), st.integers(0, 2**40), st.integers(0, 2**32))
def test_copies_are_whole_parts_and_one_by_chance(weight: float, first: int, seed: int) -> None:
    documents = first + np.arange(4_000)
    found = copies_of(np.full(4_000, weight), documents, seed=seed, source="train/web")
    assert set(found.tolist()) <= {int(weight), int(weight) + 1}
    spread = np.sqrt(0.25 / 4_000)  # of a mean of so many draws, at most
    assert abs(float(found.mean()) - weight) < 6 * spread
    half = copies_of(np.full(2_000, weight), documents[1_000:3_000], seed=seed, source="train/web")
    assert half.tolist() == found[1_000:3_000].tolist()


@pytest.mark.parametrize("weight", ["-weight - 1", "weight / 0", "score", "weight * 1000000"])
def test_impossible_weights_are_named(folder: Path, weight: str) -> None:
    with pytest.raises(InputError, match=r"for document \d+ of train/web: expected 0 to 10,000"):
        jaxdata.select(folder, "t", weight=weight)


def test_documents_that_a_lower_view_dropped_need_no_weight(folder: Path) -> None:
    jaxdata.select(folder, "scored", where="score is not None")
    jaxdata.select(folder, "t", weight="score * 2", documents="scored")
    assert kept(folder, "t").view.fate(2).reason == "where"
    with pytest.raises(InputError, match=r"no view 'scord'.*did you mean 'scored'"):
        jaxdata.select(folder, "t", where="1 < 2", documents="scord")


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
    made = jaxdata.select(folder, "t", where="quality > 0.8", **by_id)["train/web"]
    assert made.parameters["scores"] == "s.parquet"
    assert str(tmp_path) not in json.dumps(made.parameters)


def test_wrong_scores_are_named(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "twice.jsonl").write_text('{"id": "k1"}\n{"id": "k1"}\n')
    (tmp_path / "number.jsonl").write_text('{"id": 1, "quality": 2}\n')
    (tmp_path / "bad.jsonl").write_text("{\n")
    cases = [
        ("short.npy", None, "has 3 rows, train/web 48 documents"),
        ("objects.npy", None, "cannot be read: .*allow_pickle"),
        ("missing.npy", None, "cannot be read: .*No such file"),
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


def test_the_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    select = ("select", str(folder), "--output-name", "good")
    code, out, _ = run(*select, "--where", "lang == 'en'", "--sources", "web")
    assert code == 0
    assert "kept 16 of 48 documents" in out
    assert "documents: good in a config" in out
    code, out, _ = run("views", str(folder), "--json")
    assert json.loads(out)["train/web"]["good"]["account"]["kept"]["documents"] == 16
    assert "view good: command select, where lang == 'en'" in run("inspect", str(folder))[1]
    code, _, err = run(*select, "--where", "lagn == 'en'")
    assert (code, err.count("\n")) == (1, 1)
    assert "did you mean 'lang'?" in err
    assert run(*select)[0] == 1
    assert "view good of train/web is removed" in run("views", str(folder), "--remove", "good")[1]
    assert "has no view 'good'" in run("views", str(folder), "--remove", "good")[2]
