"""`jaxdata dedup --where`: expressions over fields, weights, scores from files, what it says."""

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
from jaxdata.base.errors import InputError
from jaxdata.cli import main
from jaxdata.dataset.views.expressions import Expression
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


def test_documents_that_a_lower_view_dropped_need_no_weight(folder: Path) -> None:
    with pytest.raises(InputError, match=r"for document 2 of train/web: expected 0 to 10,000"):
        jaxdata.select(folder, "t", weight="score * 2")
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
    made = jaxdata.select(folder, "t", where="quality > 0.8", **by_id)["train/web"]
    assert made.parameters["scores"] == "s.parquet"
    assert str(tmp_path) not in json.dumps(made.parameters)


def test_wrong_scores_are_named(folder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", np.zeros(3))
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.save(tmp_path / "square.npy", np.zeros((48, 2)))
    np.save(tmp_path / "texts.npy", np.array(["a"] * 48))
    (tmp_path / "twice.jsonl").write_text('{"id": "k1"}\n{"id": "k1"}\n')
    (tmp_path / "number.jsonl").write_text('{"id": 1, "quality": 2}\n')
    (tmp_path / "bad.jsonl").write_text("{\n")
    cases = [
        ("short.npy", None, "has 3 rows, train/web 48 documents"),
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


def test_the_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    select = ("dedup", str(folder), "--output-name", "good")
    code, out, _ = run(*select, "--where", "lang == 'en'", "--sources", "web")
    assert code == 0
    assert "kept 16 of 48 documents" in out
    assert "documents: good in a config" in out
    code, out, _ = run("inspect", str(folder), "--views", "--json")
    assert json.loads(out)["train/web"]["good"]["account"]["kept"]["documents"] == 16
    assert "view good: command select, where lang == 'en'" in run("inspect", str(folder))[1]
    code, _, err = run(*select, "--where", "lagn == 'en'")
    assert (code, err.count("\n")) == (1, 1)
    assert "did you mean 'lang'?" in err
    remove = ("dedup", str(folder), "--remove", "good")
    assert (
        "has no view 'good' of val/web: it has good (of train/web)"
        in run(*remove, "--sources", "web", "--split", "val")[2]
    )
    assert "view good of train/web is removed" in run(*remove, "--sources", "web")[1]
    assert "has no view 'good'" in run(*remove)[2]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (
            "--where tokens --threshold .5 --output-name a",
            "--where chooses documents by fields, and takes no --threshold: make two views, the "
            "second of the first (--documents VIEW)",
        ),
        (
            "--against val --seed 3 --output-name a",
            "--seed chooses documents by fields, and takes no --against: make two views, the "
            "second of the first (--documents VIEW)",
        ),
        (
            "--show d1 --output-name d2",
            "--show shows examples of a view, and takes no --output-name: leave it out",
        ),
        (
            "--remove d1 --scores-key url",
            "--remove removes a view, and takes no --scores-key: leave it out",
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
