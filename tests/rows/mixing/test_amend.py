"""Another recipe from a row on: what was consumed stays, and what is left of the plan goes on."""

import json
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import ConfigError, SourceExhausted, StateMismatch
from jaxdata.testing import assert_same_batches
from tests import builders

GIVEN = builders.documents(380, longest=109, seed=7)


def halting(mode: str = "halt") -> jaxdata.Loader:
    parts = {"web": GIVEN[:260], "code": GIVEN[260:]}
    rows = {
        name: jaxdata.pack(jaxdata.ArrayDocuments(each, name=name), seq_len=32, block_bytes=3_200)
        for name, each in parts.items()
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


BOTH = [{"rows": 9, "mix": {"web": 1.0, "code": 2.0}}]
AT_4 = {"at_row": 4}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = np.random.default_rng(5).integers(40, 900, 200)
    sources = {"web": lengths, "code": lengths[:90]}
    return builders.run(
        tmp_path_factory.mktemp("together"),
        sources,
        pack={"seq_len": 256},
        curriculum=[{"rows": 80, "mix": {"web": 0.6, "code": 0.4}}],
        loader={"batch_size": 8, "prefetch": 0},
    )


def opened(config: Path, *amendments: dict[str, Any]) -> jaxdata.Loader:
    return jaxdata.load(config, amendments=list(amendments))


def test_amendments_of_a_config_at_one_row_are_one(config: Path) -> None:
    wide = {"seq_len": 512}
    both = opened(config, {"at_row": 16, "pack": wide, "curriculum": BOTH})
    expected = list(both)
    assert [batch["inputs"].shape[1] for batch in expected] == [256] * 2 + [512] * 2
    (noted,) = both.get_state()["amendments"]
    assert noted.keys() == {"row", "phases", "seq_len", "sources"}
    pack, curriculum = {"at_row": 16, "pack": wide}, {"at_step": 2, "curriculum": BOTH}
    for order in permutations([pack, curriculum]):
        one = opened(config, *order)
        assert_same_batches(list(one), expected)
        assert one.get_state() == both.get_state()


@pytest.mark.parametrize(
    ("amendments", "message"),
    [
        (
            [{"at_row": 32, "epochs": {"web": 2}}, {"at_row": 16, "curriculum": BOTH}],
            r"^amendments\.0: cannot amend a mixture of 25 rows",
        ),
        ([{"at_step": 11, "epochs": {}}], r"^amendments\.0: cannot seek to step 11: the steps are"),
        (
            [AT_4 | {"epochs": {"web": 2}}, AT_4 | {"pack": {"strategy": "concat", "overlap": 8}}],
            r"^amendments\.0, amendments\.1: overlap=8 with strat",
        ),
        ([AT_4 | {"epochs": {"x": 1}}], r"amendments\.0\.epochs names the source 'x'"),
    ],
)
def test_a_config_is_told_which_amendment_is_wrong(
    config: Path, amendments: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(config, *amendments)
