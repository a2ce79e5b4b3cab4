"""Every argument of Cerebras' preprocessing in every mode: an option that fits, a note, or a no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

import jaxdata
from jaxdata import tokenizers
from jaxdata.cli import cli
from jaxdata.cli.convert import convert as command
from jaxdata.compat.cerebras import read_params, translate
from jaxdata.compat.cerebras_rules import RULES
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.parameters import make_parameters
from jaxdata.errors import InputError
from tests.converter.here import in_this_process
from tests.converter.test_convert import manifest

MODES = {
    "LMData": "LMDataPreprocessor",
    "LMData_VSL": "VSLLMDataPreprocessor",
    "Summarization": "SummarizationPreprocessor",
    "Summarization_VSL": "VSLSummarizationPreprocessor",
    "FIM": "FIMDataPreprocessor",
    "DPO": "DPOPreprocessor",
}
LATER = {
    "pretraining": {"jsonl_key": "text"},
    "finetuning": {"prompt_key": "prompt", "completion_key": "completion"},
    "dpo": {"prompt_key": "prompt"},
}
TOKENIZER = {"tokenizer_type": "NeoXTokenizer", "encoder_file": "t.json"}
FIM = {f"fim_{part}_tok": f"<{part}>" for part in ("prefix", "middle", "suffix")}
VALUES: dict[str, Any] = {
    "params": "p.yaml", "input_dir": "in", "metadata_files": "list.txt", "output_dir": "out",
    "output_name": "name", "processes": 2, "num_nodes": 2, "rank": 0, "slurm": {"partition": "a"},
    "data_splits": {"train": {"split_fraction": 0.9}, "val": {"split_fraction": "1/10"}},
    "context_splits": {"MSL_List": ["1K", 64], "split_fractions": [0.5, 0.5]},
    "data_splits_dir": "d", "split_seed": 1, "files_per_record": 50_000, "write_in_batch": True,
    "write_chunk_size": 1_024, "write_remainder": True, "resume_from_checkpoint": False,
    "display_pbar": True, "max_chunk_size": 1_024, "read_chunk_size": 64,
    "fraction_of_RAM_alloted": 0.7, "UNSAFE_skip_jsonl_decoding_errors": False, "auth_token": "t",
    "eos_id": 0, "pad_id": 1, "split_text_to_tokenize": True, "chunk_len_to_split": 2_000,
    "remove_bos_in_chunks": True, "use_ftfy": True, "ftfy_normalizer": "NFKC",
    "wikitext_detokenize": "True", "jsonl_key": "text", "prompt_key": "prompt",
    "completion_key": "completion", "chosen_key": "chosen", "rejected_key": "rejected",
    "multi_turn_key": "turns", "multi_turn_content_key": "content", "sep_token": "<|sep|>",
    "prompt_prefix": "Q", "completion_prefix": "A", "eos_after_prompt": False,
    "end_of_turn_token": "<|im_end|>", "user_role": "user", "assistant_role": "assistant",
    "chat_template": "{{ messages[0]['content'] }}", "response_delimiter": "<response>",
    "respose_delimiter": "<response>", "fim_rate": 0.5, "spm_rate": 1, **FIM,
    "max_seq_length": 128, "min_sequence_len": 10, "short_seq_prob": 0.0, "fold_long_doc": True,
    "truncate_to_msl": {"max_turn_length": 9}, "max_prompt_length": 512, "pack_sequences": True,
    "shuffle": True, "shuffle_seed": 3, "seed": 7, "token_limit": False, "input_ids_dtype": "int32",
    "input_mask_dtype": "int32", "position_ids_dtype": "int32", "seq_lengths_dtype": "int32",
    "inverted_mask": False, "mlm_fraction": 0, "mlm_with_gather": False,
    "excluded_tokens": ["<pad>"], "ignore_index": -100, "semantic_loss_weight": {},
    "semantic_drop_mask": {}, "semantic_attention_mask": {}, "is_multimodal": False,
    "multimodal": False, "image_dir": "d", "image_key": "image", "image_token": "<image>",
    "num_patches": 1, "max_num_img": 1, "register_special_image_token": True,
    "use_single_image_token": False, "multi_modal_non_image_ex_key": "m",
    "multi_modal_remove_text_prompt": True, "system_prompt_style": "vicuna_v1",
    "training_objective": None, "use_vsl": False, "module": "my.module", "mode": None,
    "dataset_processor": None, "tokenizer_type": "NeoXTokenizer", "vocab_file": "v",
    "encoder_file": "t.json", "huggingface_tokenizer": "falcon",
}  # fmt: skip


@pytest.fixture
def parameters(tmp_path: Path) -> Any:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    bytes_ = tokenizers.load("bytes")

    def check(options: dict[str, Any]) -> None:
        """Whether `jaxdata convert` takes these options."""
        known = {one.name for one in command.get_params(click.Context(command))}
        assert options.keys() <= known, "click would ignore another name in silence"
        loading = {"inputs", "output", "source", "tokenizer", "workers", "eod", "pad_token"}
        loading |= {"files_from", "add_special", "template_text_ok"}
        own = {name: value for name, value in options.items() if name not in loading}
        make_parameters(find_inputs(tmp_path / "a.jsonl"), bytes_, own).check("train")

    return check


def test_every_argument_is_tried() -> None:
    assert VALUES.keys() == RULES.keys()


@pytest.mark.parametrize("mode", [*MODES, *LATER])
def test_every_argument_in_every_mode(mode: str, parameters: Any) -> None:
    common = TOKENIZER | {"mode": mode} | LATER.get(mode, {})
    common |= FIM if mode == "FIM" else {}
    for argument, value in VALUES.items():
        if value is None:
            continue
        made = translate(common | {argument: value}, name="p.yaml")
        without = translate(common)
        parameters(made.options)
        gave = made.options != without.options
        said = [note for note in made.notes if note.startswith(f"{argument}: ")]
        silent = ("tokenizer_type", "vocab_file", "encoder_file", "huggingface_tokenizer")
        off = value in (False, 0.0, {}) or argument in (*silent, "user_role", "assistant_role")
        assert gave or said or off or argument in common, f"{argument} vanished"


WRONG: list[tuple[str, Any, str]] = [
    ("max_seq_length", "<max_seq_length>", "a whole number, 1 or more"),
    ("max_seq_length", True, "a whole number, 1 or more"),
    ("min_sequence_len", -1, "a whole number, 0 or more"),
    ("short_seq_prob", 2, "a number from 0 to 1"),
    ("short_seq_prob", "much", "a number from 0 to 1"),
    ("use_ftfy", "perhaps", "True or False"),
    ("ftfy_normalizer", "NFX", "NFC, NFD, NFKC, NFKD or None"),
    ("processes", [1], "a whole number"),
    ("output_dir", 3, "expected a text"),
    ("metadata_files", 3, "names of files"),
    ("jsonl_key", {"a": 1}, "expected a text"),
    ("eos_id", [], "expected a text"),
    ("inverted_mask", True, "loss_mask is True where there is loss; remove it"),
    ("token_limit", 10**9, "Phase.tokens=….* limits what is trained; remove it"),
    ("mlm_fraction", 0.15, "masked language modelling is not supported"),
    ("is_multimodal", True, "text only, and no images"),
    ("semantic_loss_weight", {"text": 0.5}, "has loss or has none; remove it"),
    ("data_splits", [1], "expected names and values"),
    ("data_splits", {"train": {}}, "a share of None: expected a number from 0 to 1"),
    ("context_splits", {"MSL_List": [1]}, "MSL_List and split_fractions, equally long"),
    ("context_splits", {"MSL_List": ["xK"], "split_fractions": [1]}, "a length such as 2048"),
]


@pytest.mark.parametrize(("argument", "value", "says"), WRONG)
def test_a_value_that_cannot_be_is_named(argument: str, value: Any, says: str) -> None:
    with pytest.raises(InputError, match=rf"^p\.yaml: {argument}=.*{says}"):
        translate(TOKENIZER | {argument: value}, name="p.yaml")


@pytest.mark.parametrize("mode", MODES)
def test_the_processor_names_the_mode(mode: str) -> None:
    named, processed = ({"mode": mode}, {"dataset_processor": MODES[mode]})
    shown = {"min_sequence_len": 9, "max_seq_length": 99, "pack_sequences": True}
    made = [translate(TOKENIZER | one | shown) for one in (named, processed)]
    assert made[0] == made[1]
    assert translate(TOKENIZER | {"mode": mode.lower()} | shown) == made[0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"dataset_processor": "NLGPreprocessor"}, "mode='NLG': .* hold token ids"),
        ({"dataset_processor": "LlavaPhaseOnePreprocessor"}, "and no images"),
        ({"dataset_processor": "MyProcessor"}, "a processor of your own give --task, and"),
        ({"mode": "Customize"}, "mode='Customize': expected one of LMData"),
        ({"mode": ["LMData"]}, "expected one of LMData"),
    ],
)
def test_modes_that_there_are_not_are_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        translate(TOKENIZER | given)


def test_a_typed_task_goes_before_the_mode() -> None:
    assert translate(TOKENIZER | {"mode": "NLG", "seed": 1}, "sft").options["task"] == "sft"
    made = translate(TOKENIZER | {"dataset_processor": "LMDataPreprocessor"}, "fim").options
    assert made["task"] == "fim"


def test_repaired_text_is_normalised_unless_the_file_says_null() -> None:
    def made(**given: Any) -> dict[str, Any]:
        return translate(TOKENIZER | given).options

    assert made(use_ftfy=True)["normalize"] == "NFC"
    assert "normalize" not in made(use_ftfy=True, ftfy_normalizer=None)
    assert "normalize" not in made(use_ftfy="True", ftfy_normalizer="None")
    assert made(use_ftfy=False)["ftfy"] is False
    assert "normalize" not in made(use_ftfy="False", ftfy_normalizer="NFC")


def test_sequences_are_short_not_documents() -> None:
    def made(mode: str, **given: Any) -> Any:
        return translate(TOKENIZER | {"mode": mode, "short_seq_prob": 0.2} | given)

    (note,) = made("LMData").notes
    assert "jaxdata.compat.short_rows.short_rows(rows, 0.2)" in note
    assert made("LMData_VSL", max_seq_length=64).options["short_length"] == 65
    (note,) = made("DPO").notes
    assert note == "short_seq_prob: not needed: DPO does not read it"


def test_full_rows_have_no_least_length() -> None:
    def least(**given: Any) -> Any:
        return translate(TOKENIZER | {"min_sequence_len": 9} | given).options.get("min_tokens")

    assert least(mode="LMData") is least(mode="FIM", **FIM) is None
    assert least(mode="LMData", pack_sequences=False) == least(mode="LMData_VSL") == 9
    assert least(mode="Summarization") == least(mode="DPO") == 9


def test_contexts_of_fim_are_rows() -> None:
    made = translate(TOKENIZER | FIM | {"mode": "FIM", "max_seq_length": 4_096})
    assert made.options["fim_context"] == 4_096
    (note,) = translate(TOKENIZER | FIM | {"mode": "FIM", "pack_sequences": True}).notes
    assert "strategy='best_fit'" in note, "concat would cut contexts"


RECORD = {
    "text": "one two three four " * 9, "prompt": "the question", "completion": "an answer",
    "chosen": "good answer", "rejected": "bad answer",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = (json.dumps({**RECORD, "text": f"{n} {RECORD['text']}"}) + "\n" for n in range(20))
    (tmp_path / "in.jsonl").write_text("".join(lines))
    neox = tokenizers.load(f"hf:{shared_data / 'tokenizers/gpt-neox/20B_tokenizer.json'}")
    fims = neox.with_special(["<prefix>", "<middle>", "<suffix>"])
    (tmp_path / "t.json").write_bytes(fims.files()["tokenizer.json"])
    return tmp_path


def run(params: dict[str, Any], *typed: str) -> Any:
    Path("p.yaml").write_text(yaml.safe_dump(params))
    with in_this_process():
        return CliRunner().invoke(cli, ["convert", "--cerebras-params", "p.yaml", *typed])


@pytest.mark.parametrize("mode", MODES)
def test_a_file_with_all_common_arguments_converts(folder: Path, mode: str) -> None:
    of_keys = {"DPO": ["prompt_key", "chosen_key", "rejected_key"], "FIM": ["jsonl_key", *FIM]}
    keys = of_keys.get(mode, ["prompt_key", "completion_key", "sep_token"] if "S" in mode[:1] else
                       ["jsonl_key"])  # fmt: skip
    common = [
        "processes", "files_per_record", "write_in_batch", "write_remainder", "display_pbar",
        "resume_from_checkpoint", "max_chunk_size", "eos_id", "pad_id", "use_ftfy",
        "ftfy_normalizer", "wikitext_detokenize", "max_seq_length", "short_seq_prob", "shuffle",
        "shuffle_seed", "seed", "pack_sequences", "input_ids_dtype", "input_mask_dtype",
        "inverted_mask", "auth_token",
    ]  # fmt: skip
    params = {
        "setup": {"input_dir": "in.jsonl", "dataset_processor": MODES[mode]},
        "processing": TOKENIZER | {name: VALUES[name] for name in common},
        "dataset": {name: VALUES[name] for name in keys} | {"min_sequence_len": 2},
    }
    done = run(params)
    assert done.exit_code == 0, done.output
    dataset = jaxdata.open_dataset(folder / "data_dir")  # their defaults
    sources = [name for name in dataset.manifest.sources if name.startswith("train/examples")]
    assert len(sources) == (2 if mode == "DPO" else 1)
    for name in sources:
        entry = dataset.manifest.sources[name]
        assert entry.documents == 20
        assert entry.statistics["packing"]["seq_len"] == 128
        assert entry.parameters["normalize"] == "NFKC"
    assert dataset.manifest.tokenizer.pad_id == 1


def test_the_separator_is_one_added_token(folder: Path) -> None:
    keys = {"prompt_key": "prompt", "completion_key": "completion"}
    params = TOKENIZER | keys | {"input_dir": "in.jsonl", "sep_token": "<|sep|>"}
    done = run(params)
    assert done.exit_code == 0, done.output
    dataset = jaxdata.open_dataset(folder / "data_dir")
    neox = tokenizers.load(f"hf:{folder / 't.json'}")
    added = neox.vocab_size
    assert dataset.manifest.tokenizer.vocab_size == added + 1
    tokens = dataset.source("train", "examples")[0]["tokens"].tolist()
    prompt, answer = (neox.encode([RECORD[name]])[0].tolist() for name in keys.values())
    assert tokens == [*prompt, added, *answer, neox.eod_id]
    assert "sep_token" not in done.output


def test_a_file_says_what_its_silence_means(folder: Path) -> None:
    done = run(TOKENIZER | {"input_dir": "in.jsonl"})
    assert done.exit_code == 0, done.output
    assert (
        "use_ftfy: not in the file, so it is off; Cerebras' program has it on: give" in done.output
    )
    assert "min_sequence_len: not in the file" in done.output
    assert "strip" not in manifest(folder / "data_dir")["sources"]["train/examples"]["parameters"]


def test_files_that_would_never_end_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    for content, says in (
        ("[" * 20_000, "lists or mappings in each other deeper than 50"),
        ("a: " + "x" * 2**20, "expected at most 1,048,576"),
        ("setup: [1]", "section setup: expected names and values"),
        ("3: 4", "'3' is not an argument"),
        ("setup:\nprocessing: {tokenizer_type: 5}", "tokenizer_type=5: expected one of"),
    ):
        file.write_text(content)
        with pytest.raises(InputError, match=says):
            read_params(file)
