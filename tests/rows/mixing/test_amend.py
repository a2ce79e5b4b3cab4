"""Another recipe from a row on: what was consumed stays; and what a refusal offers holds."""

import contextlib
import json
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import jaxdata
from jaxdata.base.errors import ConfigError, InputError, SourceExhausted, StateMismatch
from jaxdata.rows.mixing.amended_rows import amendment_for
from jaxdata.testing import assert_same_batches
from tests import builders

GIVEN = builders.documents(380, longest=109, seed=7)


def halting(mode: str = "halt") -> jaxdata.Loader:
    rows = {
        name: jaxdata.pack(jaxdata.ArrayDocuments(each, name=name), seq_len=32, block_bytes=3_200)
        for name, each in {"web": GIVEN[:260], "code": GIVEN[260:]}.items()
    }
    phase = jaxdata.Phase(rows=680, weights={"web": 0.7, "code": 0.3})
    return jaxdata.Loader(jaxdata.mix(rows, phases=[phase], on_exhaustion=mode), batch_size=8)


def test_the_past_stays_and_cannot_be_edited() -> None:
    first = halting().rows
    later = first.amend(84, phases=[jaxdata.Phase(rows=60, weights={"web": 1})])
    one = jaxdata.Loader(first, batch_size=6)
    one.seek(row=90)
    assert_same_batches((later[row] for row in range(84)), (first[row] for row in range(84)))
    other = jaxdata.Loader(later, batch_size=6)
    with pytest.raises(StateMismatch) as refused:
        other.set_state(one.get_state())
    assert str(refused.value).splitlines() == [
        "the loader state is at row 90; rows already consumed cannot be changed:",
        "  the amendment at row 84 in the state: absent, here: {'phases': [[60, {'web': 1}]]}",
        "amend at row 90 or later, or resume from an earlier state",
    ]
    one.seek(row=84)
    other.set_state(one.get_state())
    next(other)
    amended = other.get_state()
    assert amended["amendments"] == [{"row": 84, "phases": [[60, {"web": 1}]]}]
    with pytest.raises(StateMismatch, match=r"row 84 in the state: {'phases.*, here: absent"):
        one.set_state(amended)


def targets(batches: Iterable[dict[str, np.ndarray]]) -> list[int]:
    return [token for each in batches for token in each["targets"][each["loss_mask"]].tolist()]


def test_a_halted_run_resumed_with_renormalize_remembers_it() -> None:
    halted, going_on = halting(), halting("renormalize")
    seen = targets(next(halted) for _ in range(len(halted)))
    with pytest.raises(SourceExhausted, match="runs dry in phase 0 at row"):
        next(halted)
    state = json.loads(json.dumps(halted.get_state()))
    row = state["next_row"]
    assert row == going_on.rows.exhaustions[0].row
    going_on.set_state(state)
    seen += targets(going_on)
    assert len({*seen}) == len(seen), "nothing is repeated"
    after = going_on.get_state()
    assert after["amendments"] == [{"row": row, "on_exhaustion": "renormalize", "was": "halt"}]
    with pytest.raises(StateMismatch, match=f"next_row {after['next_row']}: expected 0 to {row}"):
        halting().set_state(after)


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


BOTH = [{"rows": 9, "mix": {"web": 1.0, "code": 2.0}}]
AT_4 = {"at_row": 4}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = {"web": 300, "code": 200, "wiki": 100}
    return builders.run(tmp_path_factory.mktemp("offered"), sources, **RUN)


def opened(config: Path, *amendments: dict[str, Any]) -> jaxdata.Loader:
    return jaxdata.load(config, amendments=list(amendments))


def test_amendments_of_a_config_at_one_row_are_one(config: Path) -> None:
    wide = {"seq_len": 64}
    both = opened(config, {"at_row": 16, "pack": wide, "curriculum": BOTH})
    expected = list(both)
    assert [batch["inputs"].shape[1] for batch in expected] == [32] * 2 + [64] * 2
    (noted,) = both.get_state()["amendments"]
    assert noted.keys() == {"row", "phases", "seq_len", "sources"}
    pack, curriculum = {"at_row": 16, "pack": wide}, {"at_step": 2, "curriculum": BOTH}
    for order in permutations([pack, curriculum]):
        one = opened(config, *order)
        assert_same_batches(list(one), expected)
        assert one.get_state() == both.get_state()


WRONG: list[Any] = [
    (
        [{"at_row": 32, "epochs": {"web": 2}}, {"at_row": 16, "curriculum": BOTH}],
        r"^amendments\.0: cannot amend a mixture of 25 rows",
    ),
    ([{"at_step": 21, "epochs": {}}], r"^amendments\.0: cannot seek to step 21: the steps are"),
    (
        [AT_4 | {"epochs": {"web": 2}}, AT_4 | {"pack": {"strategy": "concat", "overlap": 8}}],
        r"^amendments\.0, amendments\.1: overlap=8 with strat",
    ),
    ([AT_4 | {"epochs": {"x": 1}}], r"amendments\.0\.epochs names the source 'x'"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_config_is_told_which_amendment_is_wrong(config: Path, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(config, *given)


def state_at(config: Path, **overrides: Any) -> dict[str, Any]:
    loader = jaxdata.load(config, **overrides)
    loader.seek(row=AT)
    return loader.get_state()


def refusal(config: Path, state: dict[str, Any], **overrides: Any) -> str:
    with pytest.raises(StateMismatch) as caught:
        jaxdata.load(config, **overrides).set_state(state)
    return str(caught.value)


OFFERED: list[Any] = [
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
]


@pytest.mark.parametrize(("change", "entry"), OFFERED)
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


NOTHING_LEADS: list[Any] = [
    ({"seed": 3, "pack": {"seq_len": 64}}, "seed must be the same for a whole run"),
    ({"curriculum": {"rows": 20, "mix": "proportional"}}, "the curriculum ends before row 40"),
    (
        {"curriculum": LONG, "amendments": [{"at_row": 24, "pack": {"overlap": 8}}]},
        "what differs is before row 24, where one begins already",
    ),
]


@pytest.mark.parametrize(("change", "why"), NOTHING_LEADS)
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
