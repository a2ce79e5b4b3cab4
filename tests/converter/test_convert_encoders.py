"""Conversions by encoders: the dataset is the library's, to the bit, whatever they do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxdata.base.errors import InputError
from jaxdata.converter.conversion_run import Conversion
from jaxdata.tokenizers.encoders import choice, trial
from jaxdata.tokenizers.encoders.choice import library_of
from tests.converter.here import receipts, records, run_here, tree, write_lines
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
    monkeypatch.setattr(trial, "_known", lambda: [*map(chr, [*range(128), *range(0xC0, 0x100)])])
    monkeypatch.setattr(trial, "hard_texts", lambda _: [])
    return options(library)


@pytest.fixture
def expected(library: Path) -> dict[str, str]:
    return tree(library / "by-library")


def use(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str], bool]) -> None:
    monkeypatch.setattr(choice, "ENCODERS", [double(wrong)])


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


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
    file = given["inputs"].with_name("tokenizer.json")
    assert (tmp_path / "out/tokenizer/tokenizer.json").read_bytes() == file.read_bytes()
    assert "double 1.0 gives other ids than the library for 'Document" in caplog.text
    assert "encoded again by the library" in caplog.text
    assert report.encoding
    assert set(report.encoding.counts) == {""}, "no unit is left that the encoder made"
    assert "(double 1.0 gives other ids" in str(report)
    with pytest.raises(InputError, match=r"--set encoder=fast cannot encode.*it gave other ids"):
        run_here(output=tmp_path / "named", encoder="fast", **given)
    assert not [path for path in (tmp_path / "named").rglob("*") if path.is_file()]


def test_a_conversion_that_is_killed_after_a_difference_trusts_no_unit_of_that_encoder(
    given: dict[str, Any], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, {*TEXTS[1:200], *TEXTS[1_000:]}.__contains__)
    inner, calls = Conversion._convert_units, []

    def killed(self: Conversion, *given: Any) -> None:
        calls.append(1)
        stop() if len(calls) == 2 else inner(self, *given)

    monkeypatch.setattr(Conversion, "_convert_units", killed)
    with pytest.raises(KeyboardInterrupt):
        run_here(output=tmp_path / "out", encoder="fast", **given)
    assert receipts(tmp_path / "out"), "units the encoder made"
    report = run_here(output=tmp_path / "out", encoder="auto", **given)
    assert tree(tmp_path / "out") == expected
    assert report.encoding
    assert set(report.encoding.counts) == {""}


def test_what_encoded_is_in_the_history_and_where_it_matters_in_the_report(
    given: dict[str, Any], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with the encoder that is asked for now."""
    use(monkeypatch, lambda _: False)
    for encoder, by in (("library", ""), ("fast", "double 1.0")):
        folder = tmp_path / encoder
        with monkeypatch.context() as patch:
            patch.setattr(Conversion, "_publish", stop)
            with pytest.raises(KeyboardInterrupt):
                run_here(output=folder, encoder="fast", **given)
        report = run_here(output=folder, encoder=encoder, **given)
        assert tree(folder) == expected
        last = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
        assert last["encoding"]["counts"].keys() == {by}
        assert ("encoded by" in str(report)) == (encoder == "fast")
        assert report.encoding
        assert report.encoding.library == library_of("hf")
