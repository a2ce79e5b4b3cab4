"""What decides the bytes of a source: which options are written, and which exclude each other.

And what a conversion says of what is there: which sources it may resume, join, or be added to.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.converter import changes
from jaxdata.converter.changes import unfinished_changes
from jaxdata.converter.inputs.files import FileType, InputFile
from jaxdata.converter.parameters import Options, Parameters, check_name, make_parameters
from jaxdata.dataset.manifest import Manifest, SourceEntry


def parameters(*names: str, update: Mapping[str, Any] | None = None, **options: Any) -> Parameters:
    """Those of inputs of these names."""
    kind = FileType("jsonl")
    files = [InputFile("/data", name, 10, kind, f"digest of {name}", 1) for name in names]
    made = make_parameters(files, tokenizers.load("bytes", bos=2), options)
    return made.model_copy(update=dict(update or {}))


def source(made: Parameters) -> SourceEntry:
    """A finished source of all inputs of some parameters."""
    none: dict[str, Any] = {"shards": [], "statistics": {}, "checksums": {}, "fingerprint": ""}
    given = {"inputs": [*made.inputs], "parameters": made.of_source()}
    return SourceEntry(documents=3, tokens=30, **none, **given)


def manifest(made: Parameters, **sources: SourceEntry) -> Manifest:
    """A dataset of sources of the split `train`, which has no files."""
    facts = {name: getattr(made, name) for name in ("tokenizer", "dtype", "record_tokens")}
    named = {f"train/{name}": entry for name, entry in sources.items()}
    return Manifest.model_construct(**facts, sources=named)


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = yaml.safe_load("""
lm: [{}, {text_key: body, bos: true,
  transform: "mine:f", keep: [url], strip: true, ftfy: true, normalize: NFC,
  min_chars: 1, max_chars: 9, min_tokens: 1, max_tokens: 9, split_ratio: "train=2,val=1",
  split_by: url, record_tokens: 9, unit_bytes: 9, max_record_bytes: 9, piece_bytes: 16}]
fim: [{fim_prefix: 3, fim_middle: 4, fim_suffix: 5}, {fim_rate: 0.1, spm_rate: 0.1, fim_prefix: 6,
  fim_middle: 7, fim_suffix: 8, fim_context: 4096}]
sft: [{}, {prompt_key: ask, completion_key: answer, messages_key: talk,
  pairs: turns, train_on: last, chat_template: template.jinja, separator: " ",
  prompt_prefix: "Q: ", completion_prefix: "A: "}]
dpo: [{}, {prompt_key: ask, chosen_key: good, rejected_key: bad, train_on: all}]
ids: [{}, {ids_key: ids, mask_key: mask, labels_key: labels, ids_end: keep,
  keep_per_token: "weight:float32"}]
""")
"""By task: options that it is not without, and a value of each option that is not its default."""


def test_every_option_is_kept_and_none_changes_unseen_between_a_beginning_and_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def f(record):\n    return record")
    (tmp_path / "template.jinja").write_text("{{ messages[0]['content'] }}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for task, (needed, others) in OPTIONS.items():
        begun = parameters("a", task=task, **needed)
        assert not unfinished_changes(begun.encode(), begun)
        for name, value in others.items():
            made = parameters("a", **{"task": task} | needed | {name: value})
            assert Parameters.model_validate_json(made.encode()) == made
            told = unfinished_changes(begun.encode(), made)
            assert [one for one in told if re.match(f"{name} was .*, is ", one)], (name, told)
    tried = {name for _, others in OPTIONS.values() for name in others}
    sizes = {"unit_bytes", "max_record_bytes", "piece_bytes"}
    assert tried == (Options.__annotations__.keys() | sizes) - {"task"}, "none is forgotten"
    other = unfinished_changes(parameters("a").encode(), parameters("a", task="sft"))
    assert other == ["task was 'lm', is 'sft'"], "and nothing else"


NO_LISTS = "keep_per_token is for --task ids, not for task 'lm': which values belong to which "
NO_NAME = (
    "is no name for a folder of a dataset: expected letters, digits, '.', '_' and '-', beginning "
    "with a letter or digit (of sources also '/' between folders), and none of dataset.json, "
    "tokenizer, index, work"
)
NO_TEXT = (
    "task 'ids' reads no text: --dedup or --minhash, min_chars, normalize, strip cannot be "
    "done to it; min_tokens and max_tokens limit the length, and jaxdata dedup --set of=ids finds "
    "copies by their ids"
)
OF_TEXTS = {"task": "ids", "ids_key": "ids", "strip": True, "normalize": "NFC", "min_chars": 1}
OF_TEXTS |= {"min_tokens": 1, "minhash": True}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"record_tokens": 0}, "train", "record_tokens=0: expected at least 1"),
    ({"record_tokens": 2**40}, "train", f"record_tokens={2**40}: expected at most"),
    ({"exact_hash": "x"}, "train", "exact_hash='x': expected 'none', 'whitespace' or 'letters'"),
    ({"minhash": 1}, "train", "minhash=1: expected True or False"),
    ({"normalize": "NFX"}, "train", "normalize='NFX': expected 'NFC', 'NFD', 'NFKC'"),
    ({"piece_bytes": 15}, "train", "piece_bytes=15: expected at least 16"),
    ({"keep_per_token": "w:float32"}, "train", NO_LISTS),
    ({"task": "ids", "keep_per_token": "w"}, "train", "keep_per_token w: expected w:TYPE, as in"),
    ({"split_ratio": "a=1"}, "v", "--split 'v' cannot be combined with --split-ratio: give one"),
    ({"split_by": "url"}, "train", "split_by requires --split-ratio"),
    ({"split_ratio": "a/b=1"}, "train", f"--split 'a/b' {NO_NAME}"),
    ({}, "index", f"--split 'index' {NO_NAME}"),
    (OF_TEXTS, "train", NO_TEXT),
]


@pytest.mark.parametrize(("chosen", "split", "message"), WRONG)
def test_options_wrong_or_exclusive_are_refused(chosen: Any, split: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parameters("a", **chosen).check(split)
    assert str(caught.value).startswith(message)


def test_an_argument_that_is_unknown_may_be_another() -> None:
    with pytest.raises(TypeError, match="has no argument 'recordtokens'; did you mean "):
        parameters("a", recordtokens=1)


def test_names_are_those_of_folders() -> None:
    for name in ("a", "A-1.b_c", "_x", "9", "web/cc", "a/b/c", "dataset.jsonl", "indexes"):
        check_name("source", name)
    wrong = ["", ".a", "-a", "a b", "a/", "/a", "a//b", "a/.b", "a\\b", "é", "a/../b", "a\n"]
    wrong += ["dataset.json", "tokenizer", "index", "work", "a/index", "work/b"]
    for role, name in [*(("source", name) for name in wrong), ("split", "a/b")]:
        with pytest.raises(InputError) as caught:
            check_name(role, name)
        assert str(caught.value) == f"--{role} {name!r} {NO_NAME}"


URL = "memory://dataset"


def of_inputs(inputs: dict[str, str], **options: Any) -> Parameters:
    return parameters(update={"inputs": inputs, "unit_bytes": 2**22 + len(inputs)}, **options)


TOLD: list[tuple[dict[str, str], dict[str, str], list[str]]] = [
    ({"b": "one", "a": "one"}, {"a": "one", "b": "one"}, []),
    ({"a": "one"}, {"a": "one", "c": "one", "b": "one"}, ["input 'b' (and 1 more) is new"]),
    (
        {"b": "one", "c": "one", "d": "one"},
        {"a": "one", "d": "two"},
        ["input 'b' (and 1 more) is missing", "input 'a' is new", "input 'd' has other content"],
    ),
]


@pytest.mark.parametrize(("was", "now", "told"), TOLD)
def test_of_other_inputs_the_first_of_each_kind_is_named(was: Any, now: Any, told: Any) -> None:
    begun = of_inputs(was)
    assert unfinished_changes(begun.encode(), of_inputs(now)) == told
    wanted = of_inputs(now)
    check = partial(changes.check_finished, manifest(wanted, web=source(begun)))
    if not told:
        check("train/web", wanted, URL)
        return
    with pytest.raises(InputError) as caught:
        check("train/web", wanted, URL)
    what, remedy = "settings", "Use"
    if len(told) == 1:
        what, remedy = "inputs", "Add these files with --append, or use"
    expected = f"{URL} already has train/web with different {what}: {'; '.join(told)}. {remedy}"
    assert str(caught.value) == f"{expected} another --source or --output"


ANOTHER = [
    "library was 'tiktoken 0.14.0', is 'tiktoken 0.15.0'",
    "another library of the tokenizer could give other ids (pip install 'tiktoken==0.14.0' brings "
    "the first one back)",
]
ABOUT = "--dedup and --minhash keep hashes; jaxdata dedup finds copies without, too"
HASHED, LATER = ({"exact_hash": "letters", "hashing": f"version {n}"} for n in (1, 2))
CHANGES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"library": "tiktoken 0.14.0"}, {"library": "tiktoken 0.15.0"}, ANOTHER),
    ({"first_file": 2}, {}, ["--append: the source had 2 input files, has 0"]),
    ({"unit_bytes": 1}, {"unit_bytes": 2}, ["unit_bytes was 1, is 2"]),
    ({}, {"minhash": "14"}, ["minhash was None, is '14'", ABOUT]),
    (HASHED, LATER, ["hashing was 'version 1', is 'version 2'", ABOUT]),
]


@pytest.mark.parametrize(("was", "now", "told"), CHANGES)
def test_changes_since_a_beginning_are_named(was: Any, now: Any, told: list[str]) -> None:
    begun, wanted = parameters("a", update=was), parameters("a", update=now)
    assert unfinished_changes(begun.encode(), wanted) == told
    with pytest.raises(ValueError, match="Parameters"):
        unfinished_changes(b"{}", wanted)


def tokenizer(made: Parameters, **fields: Any) -> Parameters:
    return made.model_copy(update={"tokenizer": made.tokenizer.model_copy(update=fields)})


SHARED: list[tuple[dict[str, Any], str]] = [
    ({"eod_id": 9}, "eod_id was 256, is 9"),
    ({"bos_id": None, "pad_id": 1}, "bos_id was 2, is None; tokenizer pad_id was None, is 1"),
    ({"kind": "hf", "files": {"a": "b"}}, "kind was 'bytes', is 'hf'"),
    ({"files": {"a": "b"}, "name": "x"}, "was 'bytes', is 'x' with other content"),
]


def test_a_source_of_another_tokenizer_or_size_of_records_does_not_join() -> None:
    was, wanted = manifest(parameters("a")), parameters("b")
    others = [(tokenizer(wanted, **fields), f"tokenizer {said}") for fields, said in SHARED]
    others += [(parameters("b", record_tokens=7), "record_tokens was 16384, is 7")]
    for other, said in others:
        with pytest.raises(InputError) as caught:
            changes.check_dataset(was, other, URL)
        assert str(caught.value) == (
            f"{URL}: all sources of a dataset share one tokenizer and record size: {said}. "
            "Use the dataset's, or another --output"
        )
    changes.check_dataset(was, tokenizer(wanted, name="mine"), URL)


def test_documents_are_read_as_anybody_likes_but_made_by_the_same_settings() -> None:
    entry = source(parameters("a", update={"library": "tiktoken 1", "unit_bytes": 5}))
    free = {"text_key": "body", "max_record_bytes": 9, "piece_bytes": 16}
    wanted = parameters("b", update={"library": "tiktoken 1"}, **free)
    for was in (entry, source(wanted)):
        changes.check_addition("train/web", was, wanted)
    wanted = parameters("b", bos=True, update={"library": "tiktoken 2"})
    with pytest.raises(InputError) as caught:
        changes.check_addition("train/web", entry, wanted)
    assert str(caught.value) == (
        "--append: train/web was made with different settings: bos was False, is True; library was "
        "'tiktoken 1', is 'tiktoken 2'; another library of the tokenizer could give other ids (pip "
        "install 'tiktoken==1' brings the first one back). Use the same settings, or another "
        "--source"
    )
