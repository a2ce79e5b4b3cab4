"""Conversions by encoders: the dataset is the library's, to the bit, whatever they do."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import jaxdata
from jaxdata.cli import _run, cli
from jaxdata.converter import api
from jaxdata.converter.conversion import Conversion
from jaxdata.converter.conversion_run import ConversionRun
from jaxdata.errors import InputError
from jaxdata.format.history import HISTORY
from jaxdata.tokenizers.encoders import choice, trial
from jaxdata.tokenizers.encoders.guarded import drawn
from tests.converter.here import in_this_process, run_here
from tests.converter.test_convert import manifest, run, write_lines
from tests.format.trees import tree
from tests.tokenizers.made import double, settings

TEXTS = [f"Document {n}: some text of {n % 7} parts, {'café ' * (n % 3)}" for n in range(1_500)]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Some units of texts, a tokenizer, and the dataset as the library makes it."""
    few = "".join(map(chr, [*range(128), *range(0xC0, 0x100)]))
    monkeypatch.setattr(trial, "every_character", lambda: few)
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings()))
    lines = [json.dumps({"text": text}).encode() for text in TEXTS]
    options = {
        "inputs": write_lines(tmp_path / "a.jsonl", lines),
        "tokenizer": f"hf:{tmp_path / 'tokenizer.json'}",
        "unit_bytes": 20_000,
    }
    run_here(output=tmp_path / "by-library", encoder="library", **options)
    return options


def use(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str], bool]) -> None:
    monkeypatch.setattr(choice, "ENCODERS", [double(wrong)])


def same(tmp_path: Path) -> bool:
    return tree(tmp_path / "out") == tree(tmp_path / "by-library")


@pytest.mark.exhaustive
@pytest.mark.parametrize("encoder", ["tiktoken", "fast", "verify"])
def test_workers_encode_as_the_library_does(
    given: dict[str, Any], tmp_path: Path, encoder: str
) -> None:
    if encoder != "tiktoken":
        pytest.importorskip("fastokens", reason="the extra `fast` is not installed")
    report = run(output=tmp_path / "out", encoder=encoder, **given | {"workers": 2})
    assert same(tmp_path)
    assert report.encoding
    assert report.encoding.encoder.startswith("tiktoken" if encoder == "tiktoken" else "fastokens")
    assert report.encoding.ratio
    assert "all equal" in str(report)
    assert ("1,500 of 1,500 texts compared" in str(report)) == (encoder == "verify")


def test_a_character_that_differs_is_found_by_the_trial(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, lambda text: "é" in text)
    report = run_here(output=tmp_path / "out", encoder="fast", **given)
    assert same(tmp_path)
    assert report.encoding
    counts = report.encoding.counts["double 1.0"]
    assert counts["left texts"] == sum("é" in text for text in TEXTS)
    assert f"{counts['left texts']:,} left to the library" in str(report)


def test_a_word_that_differs_is_found_by_the_samples(
    given: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use(monkeypatch, lambda text: "Document" in text and "5" in text)
    with caplog.at_level(logging.WARNING, "jaxdata"):
        report = run_here(output=tmp_path / "out", encoder="fast", **given)
    assert same(tmp_path)
    assert "double 1.0 gives other ids than the library for 'Document" in caplog.text
    assert "encoded again by the library" in caplog.text
    assert report.encoding
    assert set(report.encoding.counts) == {""}, "no unit is left that the encoder made"
    assert "(double 1.0 gives other ids" in str(report)
    again = run_here(output=tmp_path / "again", encoder="verify", **given)
    assert "it gave other ids on a text" in str(again), "it is not used again"
    with pytest.raises(InputError, match=r"--encoder fast cannot encode.*it gave other ids"):
        run_here(output=tmp_path / "named", encoder="fast", **given)


def test_what_samples_miss_is_found_by_verify(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = next(text for text in TEXTS[700:] if not drawn([text], some=False))
    use(monkeypatch, lambda text: text == rare)
    run_here(output=tmp_path / "out", encoder="fast", **given)
    assert not same(tmp_path), "if the samples find it, this test shows nothing"
    report = run_here(output=tmp_path / "verified", encoder="verify", **given)
    assert tree(tmp_path / "verified") == tree(tmp_path / "by-library")
    assert report.encoding
    assert set(report.encoding.counts) == {""}


def test_a_conversion_that_is_killed_after_a_difference_trusts_no_unit_of_that_encoder(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = TEXTS[-1]
    monkeypatch.setattr("jaxdata.tokenizers.encoders.guarded.drawn", lambda texts, some: [0])
    erring = {text for text in TEXTS[:900] if "5" in text and text != TEXTS[0]}
    first_of_late = {TEXTS[n] for n in range(1_000, 1_500)}
    use(monkeypatch, lambda text: text in erring or text in first_of_late or text == last)
    inner, calls = ConversionRun._convert_units, []

    def killed(self: ConversionRun, *given: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        inner(self, *given)

    monkeypatch.setattr(ConversionRun, "_convert_units", killed)
    with pytest.raises(KeyboardInterrupt):
        run_here(output=tmp_path / "out", encoder="fast", **given)
    assert list((tmp_path / "out/train/web/work").glob("*.receipt")), "units the encoder made"
    report = run_here(output=tmp_path / "out", encoder="library", resume=True, **given)
    assert same(tmp_path)
    assert report.encoding
    assert set(report.encoding.counts) == {""}


def test_units_of_an_encoder_that_did_not_err_are_kept(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, lambda _: False)
    monkeypatch.setattr(
        ConversionRun, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        run_here(output=tmp_path / "out", encoder="fast", **given)
    monkeypatch.undo()
    report = run_here(output=tmp_path / "out", encoder="library", **given)
    assert same(tmp_path)
    assert report.encoding
    assert set(report.encoding.counts) == {"double 1.0"}


def test_another_version_of_the_library_resumes_and_appends_nothing(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, now = tmp_path / "by-library", api.library_of("hf")
    assert now
    assert manifest(out)["sources"]["train/web"]["parameters"]["library"] == now
    monkeypatch.setattr(api, "library_of", lambda _: "tokenizers 9.9.9, Unicode 19.0")
    assert run_here(output=out, **given).already_complete, "there is nothing to encode"
    more = write_lines(tmp_path / "b.jsonl", [b'{"text": "more"}'])
    version = now.partition(",")[0].removeprefix("tokenizers ")
    says = rf"library was {now}, is tokenizers 9\.9\.9, .*pip install 'tokenizers=={version}'"
    with pytest.raises(InputError, match=f"--append: train/web was made with .*{says}"):
        run_here(output=out, append=True, **given | {"inputs": [given["inputs"], more]})
    monkeypatch.undo()
    monkeypatch.setattr(
        ConversionRun, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        run_here(output=tmp_path / "out", **given)
    monkeypatch.undo()
    monkeypatch.setattr(api, "library_of", lambda _: "tokenizers 9.9.9, Unicode 19.0")
    with pytest.raises(InputError, match=f"contains an unfinished conversion .*{says}"):
        run_here(output=tmp_path / "out", **given)


def test_a_source_that_does_not_know_its_library_is_added_to(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "library_of", lambda _: None)  # as an earlier jaxdata
    out = tmp_path / "out"
    run_here(output=out, **given)
    monkeypatch.undo()
    assert "library" not in manifest(out)["sources"]["train/web"]["parameters"]
    more = write_lines(tmp_path / "b.jsonl", [b'{"text": "more"}'])
    report = run_here(output=out, append=True, **given | {"inputs": [given["inputs"], more]})
    assert report.documents == len(TEXTS) + 1
    here = manifest(tmp_path / "by-library")["sources"]["train/web"]["fingerprint"]
    entry = manifest(out)["sources"]["train/web"]
    assert entry["generations"][0]["fingerprint"] == here, "content, not the library's name"


def test_inspect_says_what_encoded_a_source(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, lambda _: False)
    report = run_here(output=tmp_path / "out", encoder="fast", **given)
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "out")]).output
    assert report.encoding
    (line,) = report.encoding.lines()
    assert f" {line} " in " ".join(shown.split())
    monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "another"))
    (tmp_path / "out").rename(tmp_path / "moved")
    assert f" {line} " in " ".join(inspected(tmp_path / "moved").split()), "the dataset knows it"
    (tmp_path / "moved" / HISTORY).unlink()
    assert "encoded by" not in inspected(tmp_path / "moved")


def inspected(folder: Path) -> str:
    result = CliRunner().invoke(cli, ["inspect", str(folder)])
    assert result.exit_code == 0, result.output
    return str(result.output)


@pytest.fixture
def caught(
    given: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> str:
    """The warning, when an encoder that errs on a rare word is caught in an append to `out`.

    It encoded `beside` and `gone`, too, and `by-library` without the word; no sample had it.
    """
    rare = [f"{'Syzygy' if n < 200 else 'Other'} text {n}" for n in range(1_000)]
    unseen = [json.dumps({"text": t}).encode() for t in rare if not drawn([t], some=False)]
    seen = [json.dumps({"text": f"Syzygy {n}"}).encode() for n in range(300)]
    first = write_lines(tmp_path / "first.jsonl", unseen[::-1])
    more = write_lines(tmp_path / "more.jsonl", seen)
    use(monkeypatch, lambda text: "Syzygy" in text)
    options = {"tokenizer": given["tokenizer"], "encoder": "fast"}
    run_here(first, tmp_path / "out", **options)
    with in_this_process():
        words = ["convert", str(first), "--source", "web", "--tokenizer", options["tokenizer"]]
        for name in ("beside", "gone"):
            assert _run([*words, "--output", str(tmp_path / name), "--encoder", "fast"]) == 0
    (tmp_path / "gone").rename(tmp_path / "moved")
    run_here(given["inputs"], tmp_path / "by-library", source="other", **options)
    with caplog.at_level(logging.WARNING, "jaxdata"):
        run_here([first, more], tmp_path / "out", append=True, **options)
    return caplog.text


def test_an_encoder_caught_in_an_append_names_what_it_encoded_before(
    caught: str, tmp_path: Path
) -> None:
    assert "double 1.0 gives other ids than the library for 'Syzygy" in caught
    assert "whose ids the dataset has" not in caught
    assert f"  train/web of {tmp_path}/out:\n" in caught
    assert f"  train/web of {tmp_path}/beside:\n" in caught
    assert f"  train/web of {tmp_path}/gone, which is not there any more: was it moved?" in caught
    assert f"  train/other of {tmp_path}/by-library:\n" in caught, "right or wrong: it encoded it"
    assert f"train/web of {tmp_path}/by-library" not in caught, "the library encoded that"


def test_inspect_names_the_encoder_of_each_generation(caught: str, tmp_path: Path) -> None:
    shown = " ".join(inspected(tmp_path / "out").split())
    documents = len(jaxdata.open_dataset(tmp_path / "out").source("train", "web"))
    assert f"generation 0, documents 0 to {documents - 301:,}: encoded by double 1.0" in shown
    later = f"generation 1, documents {documents - 300:,} to {documents - 1:,}"
    assert f"{later}: encoded by tokenizers " in shown
    assert "(double 1.0 gives other ids than the library for 'Syzygy" in shown


@pytest.mark.parametrize("name", ["out", "beside", "by-library"])
def test_the_command_that_is_named_checks_a_dataset_and_does_it_again(
    caught: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = caught.splitlines()
    at = next(n for n, line in enumerate(lines) if line.endswith(f" of {tmp_path}/{name}:"))
    steps, _, wanted = lines[at + 1].partition(" | grep ")
    assert wanted
    there = []
    for words in map(shlex.split, steps.split(" && ")):
        if words[0] == "cd":
            assert words[1] == str(Path.cwd())
        elif words[0] == "python":
            with in_this_process():
                exec(words[2], {})
        else:
            with in_this_process():
                result = CliRunner().invoke(cli, words[1:], obj="jaxdata")
            assert result.exit_code == 0, result.output
            there.append(result.output)
    assert (wanted in there[-1]) == (name == "by-library"), "there no text had the word"
    (source,) = manifest(tmp_path / f"{name}-by-library")["sources"]
    options = {"tokenizer": f"hf:{tmp_path / 'tokenizer.json'}", "source": source.split("/")[1]}
    inputs = tmp_path / ("a.jsonl" if name == "by-library" else "first.jsonl")
    run_here(inputs, tmp_path / "right", encoder="library", **options)
    assert tree(tmp_path / "right") == tree(tmp_path / f"{name}-by-library")


def test_a_conversion_killed_before_its_history_knows_its_encoder_when_it_is_repeated(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, lambda _: False)
    with monkeypatch.context() as killed:
        killed.setattr(Conversion, "_note", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_here(output=tmp_path / "out", encoder="fast", **given)
    assert "encoded by" not in inspected(tmp_path / "out")
    assert run_here(output=tmp_path / "out", encoder="library", **given).already_complete
    assert "encoded by double 1.0" in inspected(tmp_path / "out")


def test_the_report_says_what_encoded_where_that_matters(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, lambda _: False)
    for encoder, matters in (("auto", False), ("library", False), ("fast", True)):
        report = run_here(output=tmp_path / encoder, encoder=encoder, **given)
        assert ("encoded by" in str(report)) == matters
        assert "encoded by" in inspected(tmp_path / encoder), "there it is named in any case"


@pytest.mark.parametrize("encoder", ["library", "tiktoken"])
def test_dropout_is_switched_off_and_said_once(
    given: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture, encoder: str
) -> None:
    path = tmp_path / "with-dropout/tokenizer.json"
    path.parent.mkdir()
    path.write_text(json.dumps(settings(dropout=0.5)))
    given["tokenizer"] = f"hf:{path}"
    trees = []
    for output in (tmp_path / "one", tmp_path / "two"):
        caplog.clear()
        run_here(output=output, encoder=encoder, **given)
        assert caplog.text.count("'tokenizer.json' has dropout") == 1, "not by workers"
        trees.append(tree(output / "train"))
    assert trees[0] == trees[1] == tree(tmp_path / "by-library/train")
    kept = json.loads((tmp_path / "one/tokenizer/tokenizer.json").read_text())
    assert kept["model"]["dropout"] is None, "whoever reads the copy encodes as the dataset was"


def test_an_encoder_that_cannot_be_had_is_refused_before_anything_is_written(
    given: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="encoder='best'; expected one of"):
        run_here(output=tmp_path / "none", encoder="best", **given)
    with pytest.raises(InputError, match=r"--encoder tiktoken cannot encode.*not for bytes"):
        run_here(output=tmp_path / "none", encoder="tiktoken", **given | {"tokenizer": "bytes"})
    assert not [path for path in (tmp_path / "none").rglob("*") if path.is_file()]
