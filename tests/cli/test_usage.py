"""Wrong usage: what is nearly right is named, and nothing else is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxdata.cli import main
from jaxdata.testing import distinct_documents, write_dataset

CONFIG = "pack: {seq_len: 8}\nloader: {batch_size: 4}\n"


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status
    found = capsys.readouterr()
    return found.out + found.err


def test_a_dataset_is_no_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_dataset(tmp_path / "ds", {"train/web": [[1, 0]]})
    found = said(capsys, "preview", str(tmp_path / "ds"), status=1)
    assert f"ds is a dataset, not a config: give a config, and --dataset {tmp_path}/ds" in found


@pytest.mark.parametrize("command", ["train", "preview", "plan", "trace", "selftest"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["demo", "--datset", "x"], "No such option '--datset'. Did you mean '--dataset'?"),
        (["demo", "--datset=x"], "No such option '--datset'. Did you mean '--dataset'?"),
        (["demo", "--xyzzy"], "No such option '--xyzzy'."),
        (["demo", "--xyzzy.seq_len", "4"], "No such option '--xyzzy'."),
        (
            ["--seed", "3"],
            "give CONFIG: a YAML file, or the name of a config shipped with jaxdata: demo, ",
        ),
    ],
)
def test_an_unknown_option_is_no_override(
    capsys: pytest.CaptureFixture[str], command: str, given: list[str], expected: str
) -> None:
    found = " ".join(said(capsys, command, *given, status=2).replace("--step.", "").split())
    assert expected in found


def test_an_option_of_the_command_is_meant_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Did you mean '--json'?" in said(capsys, "preview", "demo", "--jsn", status=2)
    assert "Did you mean '--row'?" in said(capsys, "inspect", "x", "--rwo", "3", status=2)
    given = ("inspect", "--config", "demo", "--rwo", "3")
    assert "Did you mean '--row'?" in said(capsys, *given, status=2)


def test_a_field_of_a_section_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "preview", "demo", "--pack.seqlen", "3", status=1)
    assert found.startswith("error: unknown field 'pack.seqlen'; did you mean 'seq_len'?")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("trian", "No such command 'trian'. Did you mean train?"), ("xyz", "No such command 'xyz'.")],
)
def test_a_command_that_is_nearly_right(
    capsys: pytest.CaptureFixture[str], given: str, expected: str
) -> None:
    assert said(capsys, given, "demo", status=2).strip().endswith(expected)


@pytest.mark.parametrize("place", range(4))
def test_a_config_is_given_bare_or_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: int
) -> None:
    write_dataset(tmp_path / "d", {"train/a": distinct_documents([9] * 40)})
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG)
    where = [str(config)], ["--config", str(config)], [], []
    fields = [f"--dataset={tmp_path / 'd'}", "--seed", "3"]
    fields += [str(config)] if place == 2 else []
    fields = [fields[0], str(config), *fields[1:]] if place == 3 else fields
    found = said(capsys, "preview", *where[place], *fields, "--json", status=0)
    assert '"rows"' in found
