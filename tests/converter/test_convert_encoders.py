"""Conversions by encoders: the dataset is the library's, to the bit, whatever they do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.converter.conversion import Conversion
from jaxdata.converter.conversion_run import ConversionRun
from jaxdata.dataset.history import HISTORY
from jaxdata.tokenizers.encoders import choice, library_of, trial
from jaxdata.tokenizers.encoders.guarded import drawn
from tests.commands import run as command
from tests.converter.here import (
    manifest,
    receipts,
    records,
    run,
    run_here,
    write_lines,
)
from tests.dataset.trees import tree
from tests.tokenizers.made import double, settings

TEXTS = [f"Document {n}: some text of {n % 7} parts, {'café ' * (n % 3)}" for n in range(1_500)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some units of texts, a tokenizer, and the dataset as the library makes it."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "tokenizer.json").write_text(json.dumps(settings()))
    write_lines(folder / "a.jsonl", records(*TEXTS))
    run_here(output=folder / "by-library", encoder="library", **options(folder))
    return folder


def options(library: Path) -> dict[str, Any]:
    tokenizer = f"hf:{library / 'tokenizer.json'}"
    return {"inputs": library / "a.jsonl", "tokenizer": tokenizer, "unit_bytes": 20_000}


@pytest.fixture
def given(library: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    few = "".join(map(chr, [*range(128), *range(0xC0, 0x100)]))
    monkeypatch.setattr(trial, "every_character", lambda: few)
    monkeypatch.setattr(trial, "naughty_texts", list)
    return options(library)


@pytest.fixture
def expected(library: Path) -> dict[str, str]:
    return tree(library / "by-library")


def use(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str], bool]) -> None:
    monkeypatch.setattr(choice, "ENCODERS", [double(wrong)])


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


def inspected(folder: Path) -> str:
    return " ".join(command("inspect", folder).stdout.split())


@pytest.mark.exhaustive
def test_workers_encode_as_the_library_does(
    given: dict[str, Any], expected: dict[str, str], tmp_path: Path
) -> None:
    report = run(output=tmp_path / "out", encoder="fast", workers=2, **given)
    assert tree(tmp_path / "out") == expected
    assert report.encoding
    assert report.encoding.encoder.startswith("fastokens")
    assert "all equal" in str(report)


def test_a_word_that_differs_is_found_by_the_samples(
    given: dict[str, Any],
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    use(monkeypatch, lambda text: "Document" in text and "5" in text)
    report = run_here(output=tmp_path / "out", encoder="fast", **given)
    assert tree(tmp_path / "out") == expected
    assert "double 1.0 gives other ids than the library for 'Document" in caplog.text
    assert "encoded again by the library" in caplog.text
    assert report.encoding
    assert set(report.encoding.counts) == {""}, "no unit is left that the encoder made"
    assert "(double 1.0 gives other ids" in str(report)
    again = run_here(output=tmp_path / "again", encoder="verify", **given)
    assert "it gave other ids on a text" in str(again), "it is not used again"
    with pytest.raises(InputError, match=r"--encoder fast cannot encode.*it gave other ids"):
        run_here(output=tmp_path / "named", encoder="fast", **given)
    assert not [path for path in (tmp_path / "named").rglob("*") if path.is_file()]


def test_what_samples_miss_is_found_by_verify(
    given: dict[str, Any],
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rare = next(text for text in TEXTS[700:] if not drawn([text], some=False))
    use(monkeypatch, lambda text: text == rare)
    run_here(output=tmp_path / "out", encoder="fast", **given)
    assert tree(tmp_path / "out") != expected, "if the samples find it, this test shows nothing"
    report = run_here(output=tmp_path / "verified", encoder="verify", **given)
    assert tree(tmp_path / "verified") == expected
    assert report.encoding
    assert set(report.encoding.counts) == {""}


def test_a_conversion_that_is_killed_after_a_difference_trusts_no_unit_of_that_encoder(
    given: dict[str, Any],
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jaxdata.tokenizers.encoders.guarded.drawn", lambda texts, some: [0])
    erring = {text for text in TEXTS[1:900] if "5" in text} | {*TEXTS[1_000:]}
    use(monkeypatch, erring.__contains__)
    inner, calls = ConversionRun._convert_units, []

    def killed(self: ConversionRun, *given: Any) -> None:
        calls.append(1)
        stop() if len(calls) == 2 else inner(self, *given)

    monkeypatch.setattr(ConversionRun, "_convert_units", killed)
    with pytest.raises(KeyboardInterrupt):
        run_here(output=tmp_path / "out", encoder="fast", **given)
    assert receipts(tmp_path / "out"), "units the encoder made"
    report = run_here(output=tmp_path / "out", encoder="library", resume=True, **given)
    assert tree(tmp_path / "out") == expected
    assert report.encoding
    assert set(report.encoding.counts) == {""}


@pytest.mark.parametrize("killed", [(ConversionRun, "_publish"), (Conversion, "_note")])
def test_units_of_an_encoder_that_did_not_err_are_kept_and_told_of(
    given: dict[str, Any],
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed: tuple[type, str],
) -> None:
    use(monkeypatch, lambda _: False)
    with monkeypatch.context() as patch:
        patch.setattr(*killed, stop)
        with pytest.raises(KeyboardInterrupt):
            run_here(output=tmp_path / "out", encoder="fast", **given)
    report = run_here(output=tmp_path / "out", encoder="library", **given)
    assert report.already_complete == (killed[1] == "_note")
    assert tree(tmp_path / "out") == expected
    assert "encoded by double 1.0" in inspected(tmp_path / "out")


def test_what_encoded_is_told_by_inspect_and_where_it_matters_by_the_report(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, lambda _: False)
    for encoder, matters in (("auto", False), ("library", False), ("fast", True)):
        report = run_here(output=tmp_path / encoder, encoder=encoder, **given)
        assert ("encoded by" in str(report)) == matters
        assert report.encoding
        (line,) = report.encoding.lines()
        parameters = manifest(tmp_path / encoder)["sources"]["train/web"]["parameters"]
        assert parameters["library"] == report.encoding.library == library_of("hf")
        monkeypatch.setenv("JAXDATA_CACHE", str(tmp_path / "another"))
        (tmp_path / encoder).rename(tmp_path / "moved")
        assert f" {line} " in inspected(tmp_path / "moved"), "the dataset knows it"
        (tmp_path / "moved" / HISTORY).unlink()
        assert "encoded by" not in inspected(tmp_path / "moved")
        shutil.rmtree(tmp_path / "moved")


def test_an_encoder_caught_in_an_append_names_what_it_encoded_before(
    given: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It errs on a rare word that no sample had before: in `beside`, too."""
    rare = [f"{'Syzygy' if n < 200 else 'Other'} text {n}" for n in range(1_000)]
    unseen = [text for text in rare if not drawn([text], some=False)]
    first = write_lines(tmp_path / "first.jsonl", records(*unseen[::-1]))
    more = write_lines(tmp_path / "more.jsonl", records(*(f"Syzygy {n}" for n in range(300))))
    use(monkeypatch, lambda text: "Syzygy" in text)
    fast = {"tokenizer": given["tokenizer"], "encoder": "fast"}
    run_here(first, tmp_path / "out", **fast)
    words = ["convert", first, "--source", "web", "--tokenizer", given["tokenizer"]]
    command(*words, "--output", tmp_path / "beside", "--encoder", "fast")
    run_here([first, more], tmp_path / "out", append=True, **fast)

    caught = caplog.text
    caplog.clear()  # its records hold what was raised, and so the files of that conversion
    assert "double 1.0 gives other ids than the library for 'Syzygy" in caught
    assert f"  train/web of {tmp_path}/out: jaxdata.convert(['{first}'], " in caught
    assert f"  train/web of {tmp_path}/beside: " in caught
    assert f"--output {tmp_path}/beside" in caught
    assert "run its command with another --output and --encoder library" in caught
    shown, count = inspected(tmp_path / "out"), len(unseen)
    documents = len(jaxdata.open_dataset(tmp_path / "out").source("train", "web"))
    assert documents == count + 300
    assert f"generation 0, documents 0 to {count - 1:,}: encoded by double 1.0" in shown
    later = f"generation 1, documents {count:,} to {documents - 1:,}: encoded by tokenizers "
    assert later in shown
    assert "(double 1.0 gives other ids than the library for 'Syzygy" in shown


def test_dropout_is_switched_off_and_said_once(
    given: dict[str, Any],
    library: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "with-dropout/tokenizer.json"
    path.parent.mkdir()
    path.write_text(json.dumps(settings(dropout=0.5)))
    for encoder in ("library", "fast"):
        caplog.clear()
        given |= {"tokenizer": f"hf:{path}", "encoder": encoder}
        run_here(output=tmp_path / encoder, **given)
        assert caplog.text.count("'tokenizer.json' has dropout") == 1, "not by workers"
        assert tree(tmp_path / encoder / "train") == tree(library / "by-library/train")
    kept = json.loads((tmp_path / "library/tokenizer/tokenizer.json").read_text())
    assert kept["model"]["dropout"] is None, "whoever reads the copy encodes as the dataset was"
    with pytest.raises(InputError, match=r"--encoder fast cannot encode.*not for bytes"):
        run_here(output=tmp_path / "none", **given | {"tokenizer": "bytes"})
