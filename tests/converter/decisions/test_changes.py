"""What a conversion says of what is there: which sources it may resume, join, or be added to."""

from __future__ import annotations

from typing import Any

import pytest

from jaxdata.base.errors import InputError
from jaxdata.converter import changes as changed
from jaxdata.converter import conversion_run
from jaxdata.converter.conversion_run import Conversion
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import Parameters
from jaxdata.converter.receipts import MergedReceipts, Quarantined, RecordPlace
from jaxdata.dataset.manifest import Manifest, SourceEntry
from tests.converter.decisions.made import BYTES, input_file, manifest, parameters, source

URL = "memory://dataset"


def of_inputs(inputs: dict[str, str], **options: Any) -> Parameters:
    return parameters(update={"inputs": inputs, "unit_bytes": 2**22 + len(inputs)}, **options)


TOLD: list[tuple[dict[str, str], dict[str, str], list[str]]] = [
    ({"b": "one", "a": "one"}, {"a": "one", "b": "one"}, []),
    ({"a": "one"}, {"a": "one", "c": "one", "b": "one"}, ["input 'b' (and 1 more) is new"]),
    (
        {"b": "one", "c": "one", "d": "one"},
        {"a": "one", "d": "two"},
        [
            "input 'b' (and 1 more) is missing",
            "input 'a' is new",
            "input 'd' has other content",
        ],
    ),
]


@pytest.mark.parametrize(("was", "now", "changes"), TOLD)
def test_of_other_inputs_the_first_of_each_kind_is_named(
    was: dict[str, str], now: dict[str, str], changes: list[str]
) -> None:
    begun = of_inputs(was)
    assert changed.unfinished_changes(begun.encode(), of_inputs(now)) == changes
    said = refused(source(begun), of_inputs(now))
    added = len(changes) == 1
    what = "inputs" if added else "settings"
    remedy = "Add these files with --append, or use" if added else "Use"
    assert said == (
        (
            changes
            and (
                f"{URL} already has train/web with different {what}: {'; '.join(changes)}. "
                f"{remedy} another --source or --output"
            )
        )
        or None
    )


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


def job(*names: str, **options: Any) -> Job:
    files = [input_file(name) for name in names]
    return Job(URL, "train", "web", files, parameters(*names, **options), {}, False)


def appended(dataset: Manifest, given: Job, monkeypatch: pytest.MonkeyPatch) -> Conversion:
    """The conversion that adds to sources of a dataset what they lack."""
    monkeypatch.setattr(Conversion, "manifest", lambda _: dataset)
    return Conversion(given, given.task(BYTES), BYTES)._now(append=True)


def test_a_file_of_a_known_name_with_other_content_is_not_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = parameters("a", update={"inputs": {"a": "another digest"}})
    with pytest.raises(InputError) as caught:
        appended(manifest(known, web=source(known)), job("0", "a"), monkeypatch)
    assert str(caught.value).startswith(
        "--append: 'a' was converted before with other content, and appending it would repeat"
    )
    other = parameters("a", bos=True)
    with pytest.raises(InputError, match="train/web was made with different settings: bos was T"):
        appended(manifest(other, web=source(other)), job("b"), monkeypatch)


BAD, LACKS = "not JSON", "no key 'text'"
UNUSABLE, FIRST = "no record has a usable text:", "the first is /data/a.jsonl:3"
HAS, WHAT = f"{FIRST}, which has 'messages'.", "Are these the files? Name the keys to read with"
KEY, CHATS = "--text-key", ", or convert conversations with --task sft"
NOTHING: list[tuple[list[str], dict[str, int], str, str]] = [
    ([], {}, "--a", "the input files are empty: there is no record in them"),
    ([], {"short": 2_000, "by": 1}, "--a", "no document is left: 1 by, 2,000 short"),
    ([LACKS], {"a": 1}, "--prompt-key", f"{UNUSABLE} 1 a, 1 {LACKS}; {HAS} {WHAT} --prompt-key"),
    (
        [BAD, LACKS],
        {},
        "--text-key",
        f"{UNUSABLE} 1 {LACKS}, 1 {BAD}; {HAS} {WHAT} --text-key{CHATS}",
    ),
]


@pytest.mark.parametrize(("reasons", "dropped", "options", "message"), NOTHING)
def test_a_conversion_without_documents_says_why(
    reasons: list[str], dropped: dict[str, int], options: str, message: str
) -> None:
    made = MergedReceipts([input_file("a.jsonl")])
    made.reasons.update(reasons)
    made.dropped.update(dropped)
    if reasons:
        bad = Quarantined(0, 2, reasons[0], None, ("messages",))
        made.first_bad = RecordPlace(input_file("a.jsonl"), 3), bad
    assert str(conversion_run._no_documents(made, options)) == message
