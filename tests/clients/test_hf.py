"""transformers' Trainer and TRL's trainers on real text: losses by hand, resumed, refused."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import jaxdata
import jaxdata.torch
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.testing import check_trainer
from tests.clients.tiny import VOCAB, logits_of, mean_by_hand
from tests.converter.here import convert_here
from tests.testing.test_trainer import NAMES

pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl", reason="SFTTrainer and DPOTrainer are trl's")
from jaxdata.clients.hf import Jaxdata, refuse_model  # noqa: E402
from tests.clients.installed.programs import noted, tiny_llama, tiny_tokenizer  # noqa: E402
from tests.clients.installed.promises import Steps  # noqa: E402

SEQ_LEN, ROWS = 64, 4


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
            patch.setattr(f"huggingface_hub.constants.{name}", True)
        yield


@pytest.fixture(scope="module")
def rows(text: Path) -> Any:
    """Packed rows of short pages, several of them in one."""
    return jaxdata.pack(jaxdata.open_dataset(text).source("train", "pages"), seq_len=SEQ_LEN)


def loader(rows: Any, **settings: Any) -> Any:
    given = {"batch_size": ROWS, "layout": "hf", "reiterable": True, **settings}
    return jaxdata.torch.Loader(rows, **given)


PACKED = ["Trainer", "SFTTrainer"]
BARE = {"eval_dataset", "data_collator", "formatting_func", "compute_loss_func", "ref_model"}
PARENTS = {
    "Trainer": (transformers.Trainer, transformers.TrainingArguments, {}),
    "SFTTrainer": (trl.SFTTrainer, trl.SFTConfig, {"max_length": None}),
    "DPOTrainer": (trl.DPOTrainer, trl.DPOConfig, {}),
}


def trainer(kind: str, train: Any, folder: Path, *, made: Any = None, **settings: Any) -> Any:
    """A trainer; of the settings, those of its constructor are not its arguments'."""
    parent, config, more = PARENTS[kind]
    bare = {name: settings.pop(name) for name in BARE & settings.keys()}
    if kind != "Trainer":
        bare["processing_class"] = tiny_tokenizer()
    steps = {"max_steps": 6, "save_steps": 3, "logging_steps": 1, "learning_rate": 1e-2}
    here = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "bf16": False}
    args = config(output_dir=str(folder), **{**more, **steps, **here, **settings})
    bare |= {"model": made or tiny_llama(), "args": args, "train_dataset": train}
    return type("T", (Jaxdata, parent), {})(**bare)


def trained(one: Any, native: Any = None, resume: str | None = None) -> Steps:
    with noted(native) as seen:
        one.train(resume_from_checkpoint=resume)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKED)
def test_six_steps_are_by_hand_and_3_and_3_to_the_bit(kind: str, rows: Any, tmp_path: Path) -> None:
    native = list(islice(jaxdata.Loader(rows, batch_size=ROWS), 6))
    whole = trainer(kind, loader(rows), tmp_path)
    seen = trained(whole, iter(native))
    assert len(seen.losses) == 6
    assert seen.losses == pytest.approx(seen.by_hand, rel=1e-6)
    assert seen.losses[-1] < seen.losses[0]
    for tokens, batch in zip(seen.tokens, native, strict=True):
        assert np.array_equal(tokens[0], batch["inputs"])
    logged = [entry for entry in whole.state.log_history if "loss" in entry]
    assert [entry["data/rows"] for entry in logged] == [ROWS * step for step in range(1, 7)]
    tokens = sum(int(batch["loss_mask"].sum()) for batch in native)
    assert logged[-1]["data/tokens/train/pages"] == logged[-1]["data/tokens"] == tokens
    assert logged[-1]["data/wait_seconds"] >= 0
    again = trainer(kind, loader(rows), tmp_path)
    assert trained(again, resume=str(tmp_path / "checkpoint-3")).losses == seen.losses[3:]
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_epochs_are_passes_and_resume_in_the_second(rows: Any, tmp_path: Path) -> None:
    rows = rows[:18]
    steps, updates = 5, 3  # an epoch has
    settings = {"max_steps": -1, "num_train_epochs": 3, "save_steps": 1}
    settings["gradient_accumulation_steps"] = 2
    whole = trainer("Trainer", loader(rows), tmp_path, **settings)
    seen, expected = trained(whole), loader(rows)
    three = [batch["input_ids"] for _ in range(3) for batch in expected]
    assert len(three) == 3 * steps
    pairs = zip(np.concatenate(seen.tokens), three, strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)
    for saved, trained_before in ((updates + 2, steps + 4), (updates, steps)):
        again = trainer("Trainer", loader(rows), tmp_path, **settings)
        losses = trained(again, resume=str(tmp_path / f"checkpoint-{saved}")).losses
        assert losses == seen.losses[trained_before:]
        assert again.state.epoch == whole.state.epoch == 3


@pytest.mark.slow
def test_evaluation_is_the_mean_over_targets_every_time(rows: Any, tmp_path: Path) -> None:
    val = loader(rows[:10], batch_size=ROWS, reiterable=False)
    one = trainer("Trainer", loader(rows), tmp_path, eval_dataset=val, eval_steps=3)
    found = [one.evaluate()["eval_loss"] for _ in range(2)]
    (whole,) = jaxdata.Loader(rows[:10], batch_size=10)
    one.model.eval()
    with torch.no_grad():
        by_hand = mean_by_hand(partial(logits_of, one.model), whole)
    assert found == pytest.approx([by_hand] * 2, rel=1e-6)
    alone = trainer("SFTTrainer", loader(rows), tmp_path)
    assert alone.evaluate(val)["eval_loss"] == pytest.approx(found[0], rel=1e-6)
    named = {"some": val, "more": loader(rows[:4])}
    both = trainer("SFTTrainer", loader(rows), tmp_path, eval_dataset=named)
    assert both.evaluate()["eval_some_loss"] == pytest.approx(found[0], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKED)
def test_its_losses_pass_the_checks_of_a_trainer(kind: str, rows: Any, tmp_path: Path) -> None:
    one = trainer(kind, loader(rows), tmp_path)

    @torch.no_grad()
    def loss(batch: Any) -> Any:
        return one.compute_loss(one.model.eval(), batch)

    assert len(check_trainer(loss, loader(rows), vocab_size=VOCAB)) == len(NAMES)


LEAVE = "with a loader: leave it out"
ORDER = f"{LEAVE}; a loader has its own order"
LOSS = f"{LEAVE}; which targets have loss"
PACKS = f"{LEAVE}; the loader's rows are packed, and reach the model as they are"
ONCE = {"reiterable": False}
STRATEGY = {"train_sampling_strategy": "group_by_length"}
SPLIT = {"accelerator_config": {"split_batches": True}}


REFUSED: list[Any] = [
    ("Trainer", ONCE, {"max_steps": 9999}, "max_steps=9999, .* but the loader passes over"),
    ("Trainer", ONCE, {"max_steps": -1}, r"num_train_epochs=3, but .* once, in \d+ batches"),
    ("Trainer", {}, {"label_smoothing_factor": 0.1}, "it drops the last target of each row"),
    ("Trainer", {}, {"dataloader_num_workers": 2}, "give num_workers to the loader"),
    ("Trainer", {}, {"dataloader_drop_last": True}, "give drop_remainder to the loader"),
    ("Trainer", {}, {"data_seed": 0}, f"data_seed=0 {LEAVE}; give the seed"),
    ("Trainer", {}, {"auto_find_batch_size": True}, "the loader has its own batch_size"),
    ("Trainer", {}, STRATEGY, f"train_sampling_strategy='group_by_length' {ORDER}"),
    ("Trainer", {}, SPLIT, f"accelerator_config.split_batches=True {LEAVE}; each process gets"),
    ("SFTTrainer", {}, {"completion_only_loss": False}, f"completion_only_loss=False {LOSS}"),
    ("SFTTrainer", {}, {"assistant_only_loss": True}, f"assistant_only_loss=True {LOSS}"),
    ("SFTTrainer", {}, {"max_length": SEQ_LEN - 1}, "max_length=63 .*: set max_length=None, "),
    ("SFTTrainer", {}, {"padding_free": True}, f"padding_free=True {PACKS}"),
    ("SFTTrainer", {}, {"packing": True}, f"packing=True {PACKS}"),
    ("Trainer", {}, {"data_collator": str}, f"data_collator {LEAVE}; no collator"),
    ("SFTTrainer", {}, {"formatting_func": str}, f"formatting_func {LEAVE}; the loader"),
    ("Trainer", {"layout": "megatron"}, {}, "gives batches of another trainer's layout: ma"),
    ("Trainer", {"context_parallel": 2}, {}, "has context_parallel=2, an order of slots that"),
]


@pytest.mark.parametrize(("kind", "given", "settings", "message"), REFUSED)
def test_what_would_be_silently_wrong_is_refused(
    kind: str, given: Any, settings: Any, message: str, rows: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        trainer(kind, loader(rows, **given), tmp_path, **settings).train()


def test_what_only_datasets_are_for_may_be_there_for_those(rows: Any, tmp_path: Path) -> None:
    data = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}]
    given = {"data_collator": transformers.default_data_collator, "eval_dataset": data}
    trainer("Trainer", loader(rows), tmp_path, **given)
    trainer("SFTTrainer", loader(rows), tmp_path, max_length=SEQ_LEN)  # cuts nothing
    alone = trainer("Trainer", data * 8, tmp_path, max_steps=1, eval_dataset=data)
    assert alone.train().global_step == 1, "without a loader it is the trainer itself"
    assert alone.evaluate()["eval_loss"] > 0


def test_processes_that_each_count_their_own_targets_are_refused(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"average_tokens_across_devices": False}
    trainer("Trainer", loader(rows), tmp_path, **settings)
    monkeypatch.setattr(transformers.TrainingArguments, "world_size", 2)
    with pytest.raises(InputError, match=f"average_tokens_across_devices=False .*{LEAVE[14:]}; e"):
        trainer("Trainer", loader(rows), tmp_path, **settings)


def shifts_again(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """As transformers' own loss of labels that were shifted already: they lie in the next slot."""
    shifted = torch.nn.functional.pad(labels, (0, 2), value=-100)[:, 2:]
    count = num_items_in_batch or (shifted != -100).sum()
    return torch.nn.functional.cross_entropy(outputs.logits.mT, shifted, reduction="sum") / count


@pytest.mark.parametrize("kind", PACKED)
def test_a_loss_of_your_own_is_asked_too(kind: str, rows: Any, tmp_path: Path) -> None:
    one = trainer(kind, loader(rows), tmp_path, compute_loss_func=shifts_again)
    says = "LlamaForCausalLM cannot train on packed rows.*targets are shifted a second time"
    with pytest.raises(InputError, match=says):
        one.train()


class Accumulates:
    """A loss from shift_labels, as a subclass would have it."""

    divides = True

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **named: Any) -> Any:
        targets = inputs["shift_labels"]
        outputs = model(input_ids=inputs["input_ids"], position_ids=inputs["position_ids"])
        total = torch.nn.functional.cross_entropy(outputs.logits.mT, targets, reduction="sum")
        count = named.get("num_items_in_batch") if self.divides else None
        return total / ((targets != -100).sum() if count is None else count)


@pytest.mark.parametrize(("steps", "divides"), [(1, False), (2, True), (2, False)])
def test_means_of_means_are_refused_where_batches_are_accumulated(
    steps: int, divides: bool, rows: Any, tmp_path: Path
) -> None:
    kind = type("T", (Jaxdata, Accumulates, transformers.Trainer), {"divides": divides})
    asked = {"gradient_accumulation_steps": steps, "use_cpu": True, "report_to": []}
    args = transformers.TrainingArguments(str(tmp_path), **asked)
    one = kind(model=tiny_llama(), args=args, train_dataset=loader(rows))
    one.model.config.use_cache = False
    refused = pytest.raises(InputError, match="not divided by the targets of all 2 batches of an")
    with refused if steps == 2 and not divides else nullcontext():
        refuse_model(one, one._train_loader)


def test_an_update_is_divided_by_its_targets_whatever_the_trainer_counts(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers before 5.11 counts labels, which lack the last target of each row."""

    def labels_only(_: Any, batches: Any, number: int, device: Any) -> Any:
        found = list(islice(batches, number))
        return found, sum((batch["labels"][:, 1:] != -100).sum() for batch in found)

    monkeypatch.setattr(transformers.Trainer, "get_batch_samples", labels_only)
    one = trainer("Trainer", loader(rows), tmp_path)
    batches, count = one.get_batch_samples(iter(loader(rows)), 3, torch.device("cpu"))
    assert count == sum(int((batch["shift_labels"] != -100).sum()) for batch in batches)
    assert count > labels_only(one, iter(batches), 3, None)[1]


def test_a_model_that_lets_documents_see_each_other_is_refused(rows: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = {"hidden_size": 32, "ffn_dim": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2}
    small |= {"vocab_size": VOCAB, "num_attention_heads": 2, "max_position_embeddings": SEQ_LEN}
    made = transformers.OPTForCausalLM(transformers.OPTConfig(**small))
    with pytest.raises(InputError, match=r"OPTForCausalLM cannot train on packed rows as they are"):
        trainer("Trainer", loader(rows), tmp_path, made=made).train()


@pytest.mark.slow
def test_checkpoints_of_others_are_refused(rows: Any, tmp_path: Path) -> None:
    trainer("Trainer", loader(rows), tmp_path, max_steps=3).train()
    folder = tmp_path / "checkpoint-3"
    other = jaxdata.pack(rows.table.documents[0], seq_len=SEQ_LEN, seed=1)
    with pytest.raises(StateMismatch, match="seed was 0, is 1"):
        trainer("Trainer", loader(other), tmp_path).train(resume_from_checkpoint=str(folder))
    settings = {"gradient_accumulation_steps": 2}
    with pytest.raises(StateMismatch, match="batches into an epoch by the Trainer's count"):
        trainer("Trainer", loader(rows), tmp_path, **settings).train(str(folder))
    saved = json.loads((folder / "trainer_state.json").read_text())
    del saved["stateful_callbacks"]["JaxdataLoader"]
    (folder / "trainer_state.json").write_text(json.dumps(saved))
    with pytest.raises(StateMismatch, match="has no state of a loader: it was saved by a trainer"):
        trainer("Trainer", loader(rows), tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(InputError, match=r"resume_from_checkpoint='.*' has no trainer_state.json"):
        trainer("Trainer", loader(rows), tmp_path).train(str(tmp_path / "none"))
    next(used := loader(rows))
    with pytest.raises(InputError, match=r"the loader is at row 4 of pass 1, and train\(\) begins"):
        trainer("Trainer", used, tmp_path).train()


@pytest.fixture(scope="module")
def sides(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The chosen and rejected answers of real conversations, shortened, in bytes."""
    folder = tmp_path_factory.mktemp("dpo")
    conversations = json.loads((shared_data / "instruct" / "dpo_en_demo.json").read_text())
    with (folder / "a.jsonl").open("w") as file:
        for each in conversations[:28]:
            answers = {side: each[side]["value"][:12] for side in ("chosen", "rejected")}
            question = each["conversations"][0]["value"][:20]
            print(json.dumps({"prompt": question, **answers}), file=file)
    given = {"source": "a", "task": "dpo", "tokenizer": "bytes"}
    convert_here(folder / "a.jsonl", output=folder / "d", **given)
    dataset = jaxdata.open_dataset(folder / "d")
    return [dataset.source("train", f"a/{side}") for side in ("chosen", "rejected")]


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


@pytest.mark.slow
def test_preference_pairs_go_on_to_the_bit(sides: Any, tmp_path: Path) -> None:
    pairs = jaxdata.pairs(*sides, seq_len=SEQ_LEN)

    def dpo(**settings: Any) -> Any:
        return trainer("DPOTrainer", loader(pairs), tmp_path, ref_model=tiny_llama(), **settings)

    losses = trained(dpo()).losses
    assert losses[-1] < losses[0]
    assert trained(dpo(), resume=str(tmp_path / "checkpoint-3")).losses == losses[3:]
    with pytest.raises(InputError, match="precompute_ref_log_probs=True with a loader: leave it"):
        dpo(precompute_ref_log_probs=True)
