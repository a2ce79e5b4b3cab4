"""What a conversion says of what is there: which sources it may resume, join, or be added to."""

from typing import Any

import pytest

from jaxdata.base.errors import InputError
from jaxdata.converter import changes as changed
from jaxdata.converter.parameters import Parameters
from jaxdata.dataset.manifest import SourceEntry
from tests.converter.decisions.made import manifest, parameters, source

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


@pytest.mark.parametrize(("was", "now", "changes"), TOLD)
def test_of_other_inputs_the_first_of_each_kind_is_named(
    was: dict[str, str], now: dict[str, str], changes: list[str]
) -> None:
    begun = of_inputs(was)
    assert changed.unfinished_changes(begun.encode(), of_inputs(now)) == changes
    said = refused(source(begun), of_inputs(now))
    assert bool(said) == bool(changes)
    what, remedy = "settings", "Use another --source or --output"
    if len(changes) == 1:
        what, remedy = (
            "inputs",
            "Add these files with --append, or use another --source or --output",
        )
    expected = f"{URL} already has train/web with different {what}: {'; '.join(changes)}. {remedy}"
    assert said in (None, expected)


def refused(entry: SourceEntry, wanted: Parameters) -> str | None:
    was = manifest(wanted, web=entry)
    try:
        changed.check_finished(was, "train/web", wanted, URL)
    except InputError as error:
        return str(error)
    return None


LIBRARY = {"library": "tiktoken 0.14.0"}
ANOTHER = [
    "library was 'tiktoken 0.14.0', is 'tiktoken 0.15.0'",
    "another library of the tokenizer could give other ids (pip install 'tiktoken==0.14.0' brings "
    "the first one back)",
]
ABOUT = "--dedup and --minhash keep hashes; jaxdata dedup finds copies without, too"
HASHED, LATER = ({"exact_hash": "letters", "hashing": f"version {n}"} for n in (1, 2))
CHANGES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (LIBRARY, {"library": "tiktoken 0.15.0"}, ANOTHER),
    ({"first_file": 2}, {}, ["--append: the source had 2 input files, has 0"]),
    ({"unit_bytes": 1}, {"unit_bytes": 2}, ["unit_bytes was 1, is 2"]),
    ({}, {"minhash": "14"}, ["minhash was None, is '14'", ABOUT]),
    (HASHED, LATER, ["hashing was 'version 1', is 'version 2'", ABOUT]),
]


@pytest.mark.parametrize(("was", "now", "changes"), CHANGES)
def test_changes_since_a_beginning_are_named(
    was: dict[str, Any], now: dict[str, Any], changes: list[str]
) -> None:
    begun, wanted = parameters("a", update=was), parameters("a", update=now)
    assert changed.unfinished_changes(begun.encode(), wanted) == changes
    with pytest.raises(ValueError, match="Parameters"):
        changed.unfinished_changes(b"{}", wanted)


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
    for other, said in [
        *others,
        (parameters("b", record_tokens=7), "record_tokens was 16384, is 7"),
    ]:
        with pytest.raises(InputError) as caught:
            changed.check_dataset(was, other, URL)
        assert str(caught.value) == (
            f"{URL}: all sources of a dataset share one tokenizer and record size: {said}. "
            "Use the dataset's, or another --output"
        )
    changed.check_dataset(was, tokenizer(wanted, name="mine"), URL)


def test_documents_are_read_as_anybody_likes_but_made_by_the_same_settings() -> None:
    entry = source(parameters("a", update={"library": "tiktoken 1", "unit_bytes": 5}))
    free = {"text_key": "body", "max_record_bytes": 9, "piece_bytes": 16}
    wanted = parameters("b", update={"library": "tiktoken 1"}, **free)
    for was in (entry, source(wanted)):
        changed.check_addition("train/web", was, wanted)
    wanted = parameters("b", bos=True, update={"library": "tiktoken 2"})
    with pytest.raises(InputError) as caught:
        changed.check_addition("train/web", entry, wanted)
    assert str(caught.value) == (
        "--append: train/web was made with different settings: bos was False, is True; library was "
        "'tiktoken 1', is 'tiktoken 2'; another library of the tokenizer could give other ids (pip "
        "install 'tiktoken==1' brings the first one back). Use the same settings, or another "
        "--source"
    )
