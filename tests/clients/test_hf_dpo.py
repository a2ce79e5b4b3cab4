"""TRL's DPOTrainer on real preference pairs: its own batches, losses by hand, resumed."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import jaxdata
from jaxdata.base.errors import InputError
from tests.clients.test_hf import ROWS, SEQ_LEN, loader, model, offline, trainer

__all__ = ["offline"]
BETA = 0.1


@pytest.fixture(scope="module")
def sides(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The chosen and rejected answers of real conversations, shortened, in bytes."""
    folder = tmp_path_factory.mktemp("dpo")
    conversations = json.loads((shared_data / "instruct" / "dpo_en_demo.json").read_text())
    records = [
        {
            "prompt": each["conversations"][0]["value"][:20],
            **{side: each[side]["value"][:12] for side in ("chosen", "rejected")},
        }
        for each in conversations[:28]
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    output = {"output": folder / "d", "source": "a", "task": "dpo", "workers": 1}
    jaxdata.convert(folder / "a.jsonl", tokenizer="bytes", **output)
    dataset = jaxdata.open_dataset(folder / "d")
    return [dataset.source("train", f"a/{side}") for side in ("chosen", "rejected")]


@pytest.fixture(scope="module")
def pairs(sides: Any) -> Any:
    return jaxdata.pairs(*sides, seq_len=SEQ_LEN)


def test_batches_are_those_of_trls_own_collator(sides: Any) -> None:
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    examples = []
    for chosen, rejected in zip(*sides, strict=True):
        prompt = int(chosen["loss_mask"].argmax())
        ids = {"chosen_ids": chosen["tokens"], "rejected_ids": rejected["tokens"]}
        ends = {name: tokens[prompt:].tolist() for name, tokens in ids.items()}
        examples.append({"prompt_ids": chosen["tokens"][:prompt].tolist(), **ends})
    collate = DataCollatorForPreference(pad_token_id=0, pad_to_multiple_of=SEQ_LEN + 1)
    ours = loader(jaxdata.pairs(*sides, seq_len=SEQ_LEN, shuffle=False), reiterable=False)
    for number, batch in enumerate(ours):
        theirs = collate(examples[ROWS * number : ROWS * (number + 1)])
        assert set(batch) == set(theirs)
        assert all(torch.equal(batch[name], theirs[name]) for name in batch)


def loss_by_hand(model: Any, batch: Any) -> float:
    """The mean over pairs of -log sigmoid(beta * (ratio of chosen - ratio of rejected))."""
    ratios = {}
    for side in ("chosen", "rejected"):
        ratios[side] = log_likelihoods(model, batch, side) - log_likelihoods(
            REFERENCE["model"], batch, side
        )
    margin = torch.tensor(BETA * (ratios["chosen"] - ratios["rejected"]))
    return float(-torch.nn.functional.logsigmoid(margin).mean())


def log_likelihoods(model: Any, batch: Any, side: str) -> Any:
    """Of each answer, by itself."""
    found = []
    for row in range(ROWS):
        filled = batch[f"{side}_segment_ids"][row] > 0
        inputs = torch.tensor(batch[f"{side}_inputs"][row][filled])[None].long()
        targets = torch.tensor(batch[f"{side}_targets"][row][filled]).long()
        each = model(inputs).logits[0].log_softmax(-1)[torch.arange(len(targets)), targets]
        found.append(float(each[torch.tensor(batch[f"{side}_loss_mask"][row][filled])].sum()))
    return np.array(found)


REFERENCE: dict[str, Any] = {}


def dpo(pairs: Any, folder: Path, **settings: Any) -> Any:
    REFERENCE["model"] = model().eval()
    one = trainer(
        "DPOTrainer", loader(pairs), folder, bare={"ref_model": model()}, beta=BETA, **settings
    )
    type(one).hand = staticmethod(loss_by_hand)
    return one


@pytest.mark.slow
def test_six_steps_have_the_losses_worked_out_by_hand_and_resume(
    pairs: Any, tmp_path: Path
) -> None:
    whole = dpo(pairs, tmp_path)
    whole.native = list(islice(jaxdata.Loader(pairs, batch_size=ROWS), 6))
    whole.train()
    assert len(whole.losses) == 6
    assert whole.losses == pytest.approx(whole.by_hand, rel=1e-6)
    assert whole.losses[-1] < whole.losses[0]
    again = dpo(pairs, tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert again.losses == whole.losses[3:]


def test_what_reads_the_dataset_is_refused(pairs: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="precompute_ref_log_probs=True with a loader: leave it"):
        dpo(pairs, tmp_path, precompute_ref_log_probs=True)
