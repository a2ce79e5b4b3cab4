"""The state of a stream of text is parsed like a loader's: refused by name, or the right stream."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.errors import StateMismatch
from jaxdata.feed.saved_state import sealed
from tests.feed.mutations import mutations, refusal

pytestmark = pytest.mark.filterwarnings("ignore:stream_text")


def stream(folder: Path) -> Any:
    for number in range(2):
        lines = (json.dumps({"text": f"{number} {k} " * (k % 9)}) for k in range(60))
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    files = [folder / "0.jsonl", folder / "1.jsonl"]
    settings = {"tokenizer": "bytes", "seq_len": 32, "batch_size": 4, "buffer": 10}
    return jaxdata.stream_text(files, **settings, epochs=2, num_workers=0, prefetch=0)


def moved(folder: Path) -> dict[str, Any]:
    one = stream(folder)
    list(islice(one, 7))
    state: dict[str, Any] = json.loads(json.dumps(one.get_state()))
    return state


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_damaged_states(tmp_path: Path, checked: bool, count: int) -> None:
    state, taken = moved(tmp_path), 0
    if not checked:
        del state["checksum"]
    one = stream(tmp_path)
    for each in mutations(state, count, seed=count):
        if refusal(one.set_state, each) is not None:
            continue
        taken += 1
        now = one.get_state()
        assert now == sealed({**state, "next_row": each["next_row"], "position": each["position"]})
        assert now == state or "checksum" not in each
        list(islice(one, 2 if taken < 100 else 0))  # a position that nothing is at has an end
    assert 0 < taken < count / 2


def test_a_position_is_checked_by_name(tmp_path: Path) -> None:
    one, state = stream(tmp_path), moved(tmp_path)
    for wrong in ({"file": 2}, {"unit": -1}, {"row": 1.5}, {"line": "3"}, {"word": 1}):
        position = {**state["position"], **wrong}
        with pytest.raises(StateMismatch, match=r"loader state has position .*(expected|files)"):
            one.set_state(sealed({**state, "position": position}))
    with pytest.raises(StateMismatch, match="has position None: expected epoch, "):
        one.set_state(sealed({name: state[name] for name in state if name != "position"}))
    assert one.next_row == 0
