"""Lines of READMEs for other people's programs, run as they stand: loggers, Flax."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jaxdata
from tests.clients.tiny import SEQ_LEN, VOCAB, mean_by_hand
from tests.readmes import of

TABLE = of("feed").text


def line_of(logger: str) -> str:
    (found,) = re.findall(rf"^\| {logger}.* \| `([^|]+)` \|$", TABLE, re.MULTILINE)
    return found


@pytest.fixture
def loader() -> jaxdata.Loader:
    docs = jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 8, name="train/web")
    loader = jaxdata.Loader(jaxdata.mix({"web": jaxdata.pack(docs, seq_len=3)}), batch_size=2)
    next(loader)
    return loader


def test_loggers_take_what_was_delivered(loader: Any) -> None:
    """Stand-ins: wandb took its line offline, and leaves a process behind."""
    expected = {f"data/{name}": value for name, value in loader.scalars().items()}
    assert expected["data/tokens/web"] == expected["data/tokens"] == 6
    seen: dict[str, Any] = {}
    writer = SimpleNamespace(add_scalar=lambda name, value, step: seen.update({name: value}))
    exec(line_of("TensorBoard"), {"writer": writer, "loader": loader})
    wandb = SimpleNamespace(log=lambda values, *, step: seen.update(wandb=(values, step)))
    exec(line_of("Weights"), {"wandb": wandb, "loader": loader})
    values, step = seen.pop("wandb")
    assert seen.keys() == values.keys() == expected.keys()
    assert (seen["data/tokens/web"], values["data/tokens/web"], step) == (6, 6, 1)


def recipe(heading: str) -> str:
    text = of("clients").text.split(f"### A loop in {heading}\n")[1]
    return text.split("```text\n")[1].split("```")[0]


@pytest.fixture
def here(run: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    run["curriculum"] = [{"rows": 48, "mix": {"pages": 0.6, "code": 0.4}}]
    (tmp_path / "run.yaml").write_text(json.dumps(run))
    monkeypatch.chdir(tmp_path)
    return run


def test_flax(here: dict[str, Any]) -> None:
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")
    import jax
    import jax.numpy as jnp
    import optax

    class Model(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.tokens, self.places = (nnx.Embed(n, 16, rngs=rngs) for n in (VOCAB, SEQ_LEN))
            self.qkv, self.head = (nnx.Linear(16, n, rngs=rngs) for n in (48, VOCAB))

        def __call__(self, tokens: Any, positions: Any, ids: Any) -> Any:
            x = self.tokens(tokens) + self.places(positions)
            q, k, v = jnp.split(self.qkv(x), 3, -1)
            seen = (ids[:, :, None] == ids[:, None, :]) & jnp.tri(ids.shape[1], dtype=bool)
            scores = jnp.where(seen, q @ k.mT, -1e30)
            return self.head(x + jax.nn.softmax(scores) @ v)

    model = Model()
    first = mean_by_hand(model, next(jaxdata.load("run.yaml")))
    names = {"jaxdata": jaxdata, "nnx": nnx, "optax": optax, "model": model}
    names["optimizer"] = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    exec(recipe("Flax"), names)
    assert len(names["losses"]) == 6
    assert abs(names["losses"][0] - first) < 1e-5
    assert names["losses"][-1] < names["losses"][0]
