"""A state of another recipe: the refusal ends with an amendment, which holds once it is pasted."""

import contextlib
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
OTHER = {"wiki": 0.5, "web": 0.5}
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
            {"curriculum": LONG, "epochs": {"web": 2, "code": 1.5}, "on_exhaustion": "halt"},
            {
                "curriculum": [{"rows": 21, "mix": {"web": 0.5, "code": 0.5}}, *LONG[2:]],
                "epochs": {"web": 2, "code": 1.5},
                "on_exhaustion": "halt",
            },
        ),
        (
            {"pack": {"seq_len": 64}, "curriculum": {"tokens": 3_200, "mix": OTHER}},
            {"curriculum": [{"tokens": 1_920, "mix": OTHER}], "pack": {"seq_len": 64}},
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
    if "pack" not in change:
        asked = jaxdata.load(config, **change)
        assert len(loader.rows) == len(asked.rows)
        assert loader.rows.intervals[-1].shares == pytest.approx(asked.rows.intervals[-1].shares)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seed": 3, "pack": {"seq_len": 64}}, "seed must be the same for a whole run"),
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


@pytest.mark.parametrize("strange", [None, -3, "x", [1], {"a": [{}]}, {"web": 7}])
def test_whatever_a_state_holds_is_no_error_of_ours(config: Path, strange: Any) -> None:
    was = state_at(config)["run"]
    table = jaxdata.load(config, curriculum=LONG).rows.table
    for odd in [*(was | {name: strange} for name in was), dict.fromkeys(was, strange)]:
        with contextlib.suppress(InputError):
            assert amendment_for(table, odd, AT)
