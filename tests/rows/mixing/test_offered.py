"""A state of another recipe: the refusal ends with an amendment, which holds once it is pasted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import jaxdata
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.rows.mixing.amended_rows import amendment_for
from tests import builders

FIRST = {"rows": 60, "mix": {"web": 0.6, "code": 0.4}}
RUN: dict[str, Any] = {
    "pack": {"seq_len": 32},
    "curriculum": [FIRST, {"tokens": 3200, "mix": {"web": 1.0}}],
    "loader": {"batch_size": 8},
}
AT = 40
LONG = [{"rows": 30 + n, "mix": {"web": 0.5, "code": 0.5}} for n in range(5)]
"""a state has only a digest of them"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builders.run(
        tmp_path_factory.mktemp("offered"), {"web": 300, "code": 200, "wiki": 100}, **RUN
    )


def state_at(config: Path, **overrides: Any) -> dict[str, Any]:
    loader = jaxdata.load(config, **overrides)
    loader.seek(row=AT)
    return loader.get_state()


def refusal(config: Path, state: dict[str, Any], **overrides: Any) -> str:
    with pytest.raises(StateMismatch) as caught:
        jaxdata.load(config, **overrides).set_state(state)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        (
            {"curriculum": [FIRST, {"tokens": 3200, "mix": {"wiki": 0.5, "web": 0.5}}]},
            {
                "curriculum": [
                    {"rows": 20, "mix": {"web": 0.6, "code": 0.4}},
                    {"tokens": 3200, "mix": {"wiki": 0.5, "web": 0.5}},
                ]
            },
        ),
        (
            {"curriculum": {"steps": 15, "batch_size": 8, "mix": "proportional"}},
            {"curriculum": [{"rows": 80, "mix": "proportional"}]},
        ),
        (
            {"curriculum": [FIRST, {"mix": "size**0.5"}], "on_exhaustion": "halt"},
            {
                "curriculum": [
                    {"rows": 20, "mix": {"web": 0.6, "code": 0.4}},
                    {"mix": "size**0.5"},
                ],
                "on_exhaustion": "halt",
            },
        ),
        (
            {"curriculum": LONG, "epochs": {"web": 2, "code": 1.5}},
            {
                "curriculum": [{"rows": 21, "mix": {"web": 0.5, "code": 0.5}}, *LONG[2:]],
                "epochs": {"web": 2, "code": 1.5},
            },
        ),
        ({"pack": {"seq_len": 64, "overlap": 4}}, {"pack": {"seq_len": 64, "overlap": 4}}),
        (
            {"pack": {"seq_len": 64}, "curriculum": {"tokens": 32 * 100, "mix": {"web": 1.0}}},
            {
                "curriculum": [{"tokens": 32 * 60, "mix": {"web": 1.0}}],
                "pack": {"seq_len": 64},
            },
        ),
    ],
)
def test_the_lines_of_a_refusal_lead_the_run_over_to_the_other_recipe(
    config: Path, change: dict[str, Any], entry: dict[str, Any]
) -> None:
    state = state_at(config)
    head, lines = refusal(config, state, **change).split("\namendments:\n")
    assert head.endswith(
        "\nTo go on by this recipe from row 40, set back what differs and add to its config "
        "(in Python, these are arguments of mixed.amend(40, …)):"
    )
    assert yaml.safe_load(lines) == [{"at_row": AT, **entry}]
    pasted = config.with_name("pasted.yaml")
    pasted.write_text(f"{config.read_text()}amendments:\n{lines}\n")
    loader = jaxdata.load(pasted)
    loader.set_state(state)
    assert loader.next_row == AT
    assert next(loader)["inputs"].shape == (8, change.get("pack", {}).get("seq_len", 32))
    same = jaxdata.load(config).rows
    assert all((loader.rows[row]["inputs"] == same[row]["inputs"]).all() for row in (0, AT - 1))
    if "pack" not in change:
        asked = jaxdata.load(config, **change)
        assert len(loader.rows) == len(asked.rows)
        assert loader.rows.intervals[-1].shares == pytest.approx(asked.rows.intervals[-1].shares)


def test_a_recipe_that_a_state_has_a_digest_of_is_compared_by_it(config: Path) -> None:
    was = state_at(config, curriculum=LONG)["run"]
    assert isinstance(was["phases"], str)
    changed = jaxdata.load(config, curriculum=LONG, pack={"overlap": 2}).rows.table
    assert amendment_for(changed, was, AT) == {"pack": {"overlap": 2}}
    others = {"web": 2, "code": 3}
    was["epochs"] = "12345678"
    more = jaxdata.load(config, curriculum=LONG, epochs=others).rows.table
    assert amendment_for(more, was, AT) == {"epochs": others}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seed": 3}, "seed must be the same for a whole run"),
        (
            {"seed": 3, "weigh_by": "loss_tokens", "pack": {"seq_len": 64}},
            "seed and weigh_by must be the same for a whole run",
        ),
        ({"curriculum": {"rows": 20, "mix": "proportional"}}, "the curriculum ends before row 40"),
        (
            {"curriculum": LONG, "amendments": [{"at_row": 24, "pack": {"overlap": 8}}]},
            "what differs is before row 24, where one begins already",
        ),
    ],
)
def test_where_no_amendment_can_lead_over_the_refusal_says_so(
    config: Path, change: dict[str, Any], why: str
) -> None:
    message = refusal(config, state_at(config), **change)
    assert message.endswith(f"\nNo amendment leads that run over to this recipe: {why}.")
    assert "amendments:" not in message


def test_rows_that_are_no_mixture_cannot_be_amended() -> None:
    docs = jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 8)
    one, other = (jaxdata.pack(docs, seq_len=6, seed=seed) for seed in (0, 1))
    with pytest.raises(StateMismatch) as caught:
        jaxdata.Loader(other, batch_size=1).set_state(jaxdata.Loader(one, batch_size=1).get_state())
    assert str(caught.value).endswith("recipe: only rows of jaxdata.mix can be amended.")


@pytest.mark.parametrize("strange", [None, 0, -3, "x", [1], {"a": [{}]}, {"web": 7}, 1.5])
def test_whatever_a_state_holds_is_no_error_of_ours(config: Path, strange: Any) -> None:
    was = state_at(config)["run"]
    table = jaxdata.load(config, curriculum=LONG).rows.table
    for name in was:
        amendment = answer(table, was | {name: strange})
        assert isinstance(amendment, str) or "curriculum" in amendment
    assert answer(table, dict.fromkeys(was, strange)) is not None


def answer(table: Any, was: dict[str, Any]) -> dict[str, Any] | str:
    try:
        return amendment_for(table, was, AT)
    except InputError as error:
        return str(error)
