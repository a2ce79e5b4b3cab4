"""What decides the bytes of a source: which options are written, and which exclude each other."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxdata.base.errors import InputError
from jaxdata.converter.changes import unfinished_changes
from jaxdata.converter.parameters import Options, Parameters, check_name
from tests.converter.decisions.made import parameters

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def f(record):\n    return record")
    (tmp_path / "template.jinja").write_text("{{ messages[0]['content'] }}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("folder")
def test_every_option_is_kept_and_none_changes_unseen_between_a_beginning_and_a_resume() -> None:
    for task, (needed, changes) in OPTIONS.items():
        begun = parameters("a", task=task, **needed)
        assert not unfinished_changes(begun.encode(), begun)
        for name, value in changes.items():
            made = parameters("a", **{"task": task} | needed | {name: value})
            assert Parameters.model_validate_json(made.encode()) == made
            told = unfinished_changes(begun.encode(), made)
            assert [one for one in told if re.match(f"{name} was .*, is ", one)], (name, told)
    tried = {name for _, changes in OPTIONS.values() for name in changes}
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
IDS = {"task": "ids", "ids_key": "ids"}
NO_TEXT = (
    "task 'ids' reads no text: --dedup or --minhash, min_chars, normalize, strip cannot be "
    "done to it; min_tokens and max_tokens limit the length, and jaxdata dedup --set of=ids finds "
    "copies by their ids"
)
OF_TEXTS = IDS | {"strip": True, "normalize": "NFC", "min_chars": 1, "min_tokens": 1}
OF_TEXTS |= {"minhash": True}
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
def test_options_that_are_wrong_or_exclude_each_other_are_refused(
    chosen: dict[str, Any], split: str, message: str
) -> None:
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
