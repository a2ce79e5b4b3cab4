"""That what the READMEs name is there: rooms, links, files, names, commands, tables."""

import contextlib
import importlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import click
import pytest

from tests.conftest import ROOT
from tests.readmes import DOCUMENTS, OF_FOLDERS, OF_ROOMS, PACKAGE, READMES, TOP, Readme, of


def test_the_top_one_is_short_and_leads_to_every_room() -> None:
    assert TOP.text.count("\n") <= 200
    assert "```\npip install . && jaxdata demo " in TOP.text
    assert "\npip install '.[test]' && pytest " in TOP.text
    assert {str(readme) for readme in (*OF_ROOMS, *OF_FOLDERS)} <= set(TOP.links())


@pytest.mark.parametrize("readme", [*OF_ROOMS, *OF_FOLDERS], ids=str)
def test_every_room_has_its_signs(readme: Readme) -> None:
    """What it is for, its files, how to change it and how to add to it."""
    room = readme.folder.name
    headings = re.findall(r"^## (.*)$", readme.prose, re.MULTILINE)
    assert readme.text.startswith(f"# {room}: ")
    assert headings[0].startswith("The files")
    change = headings.index("To change this room")
    assert headings[change + 1 :]
    assert all(re.match(r"To add (an?|another) ", heading) for heading in headings[change + 1 :])
    named = {name.split("/")[0] for name in readme.named()}
    files = {path.name for path in readme.folder.iterdir() if path.name[0] not in "_."}
    assert {name for name in files if name.endswith(".py") or (readme.folder / name).is_dir()} <= (
        named | {name for name in files if f"`{name}/" in readme.prose}
    )


# What somebody looks for: the words of the house that lead to its room, and its place.
SOUGHT = {
    "padding": "rows/packing/strategies.py",
    "splits": "converter/splits.py",
    "exhaustion": "rows/mixing/timeline.py",
    "eviction": "storage/pages/page_cache.py",
    "endpoints": "storage/credentials.py",
    "views and their cuts": "dataset/views/source_view.py",
    "hashes": "base/hashing.py",
    "how workers": "base/processes.py",
    "schema": "config/annotated.py",
    "side arrays": "dataset/documents.py",
    "special tokens": "converter/chat/formatting.py",
    "Orbax": "feed/checkpoint.py",
}


@pytest.mark.parametrize("words", SOUGHT)
def test_one_finds_it_by_the_house_and_one_readme(words: str) -> None:
    room, _, inside = SOUGHT[words].partition("/")
    house = TOP.text.partition("## The house")[2].splitlines()
    assert any(f"({of(room)})" in line and words in line for line in house)
    assert inside in of(room).named()


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_its_links_lead_somewhere_and_the_files_it_names_exist(document: Readme) -> None:
    for link in document.links():
        path, _, anchor = link.partition("#")
        target = (document.folder / path).resolve() if path else ROOT / document.path
        assert target.exists(), link
        if anchor:
            assert anchor in Readme(str(target.relative_to(ROOT))).anchors(), link
    places = (document.folder, PACKAGE, ROOT)
    for name in document.named():
        if re.fullmatch(r"[\w./-]*\w\.(py|md)|(tests|tools|\.\.)/[\w./-]+", name):
            assert any((place / name).exists() for place in places), name


@pytest.mark.parametrize("readme", READMES, ids=str)
def test_the_names_it_calls_exist(readme: Readme) -> None:
    """Dotted names of the package, wherever they stand."""
    for name in set(re.findall(r"\bjaxdata(?:\.\w+)+", readme.text)):
        parts = name.split(".")
        found: Any = importlib.import_module("jaxdata")
        for number, part in enumerate(parts[1:], 2):
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(parts[:number]))
            assert hasattr(found, part), name
            found = getattr(found, part)


def test_every_public_name_is_explained() -> None:
    import jaxdata

    said = " ".join(readme.text for readme in READMES)
    assert [name for name in jaxdata.__all__ if not re.search(rf"\b{name}\b", said)] == []


def options(command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    for parameter in command.get_params(context):
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from options(command.get_command(context, name) or command)


def choices(command: str, option: str) -> set[str]:
    from jaxdata.cli import cli

    found = cli.get_command(click.Context(cli), command)
    assert found
    (parameter,) = (p for p in found.get_params(click.Context(found)) if option in p.opts)
    return set(parameter.type.choices)


# Options of Megatron-LM, which the README of clients names.
MEGATRONS = {"--rampup-batch-size", "--dataloader-type", "--dataloader-inter-document-masking"}
MEGATRONS |= {"--calculate-per-token-loss", "--dataloader-save", "--transformer-impl"}
MEGATRONS |= {"--no-masked-softmax-fusion", "--eval-iters"}


def test_the_commands_and_options_it_names_exist() -> None:
    from jaxdata.cli import COMMANDS, SYNONYMS, cli
    from jaxdata.config import Config

    known = {*options(cli)} | {f"--{name}" for name in Config.model_fields}
    for readme in READMES:
        texts = "".join(readme.blocks("text")).replace("\\\n", "")
        shown = re.sub("“.*?”", "", texts).splitlines()  # without texts of documents
        for span in [*readme.commands(), *shown, *readme.named()]:
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", span):
                theirs = span.startswith("ray ") or option in MEGATRONS
                assert option in known or theirs, (readme.path, option)
            for name in re.findall(r"--set ([a-z]\w*)=", span):
                assert any(each.startswith(f"--set {name}=") for each in known), name
            for command in re.findall(r"(?:^|\s)jaxdata ([a-z]+)\b", span):
                assert command in {*COMMANDS, *SYNONYMS}, (readme.path, command)


def test_the_tables_say_what_there_is() -> None:
    """Tables of what can be chosen, and the registries."""
    from jaxdata.base.errors import __all__ as errors
    from jaxdata.cli import COMMANDS
    from jaxdata.config import Config
    from jaxdata.dataset.foreign import FORMATS
    from jaxdata.feed.layouts import LAYOUTS
    from jaxdata.rows.mixing.phases import OnExhaustion
    from jaxdata.rows.packing.strategies import STRATEGIES
    from jaxdata.testing import __all__ as functions
    from jaxdata.tokenizers import SPECS

    def first_words(names: Iterable[str]) -> set[str]:
        return {name.split(":")[0] for name in names}

    assert set(of("packing").column("`strategy`")) == set(STRATEGIES)
    assert set(of("feed").column("`layout`")) == set(LAYOUTS)
    assert set(of("converter").column("task")) == choices("convert", "--task")
    formats = [of("foreign").column(f"`--format` of {what}") for what in ("rows", "documents")]
    assert {*formats[0], *formats[1]} == choices("export", "--format")
    assert first_words(of("dataset").column("`open_dataset(…)`")) == set(FORMATS)
    assert set(of("mixing").column("`on_exhaustion`")) == set(get_args(OnExhaustion))
    assert set(of("config").column("field")) == set(Config.model_fields)
    kinds = {*re.findall(r"(\w+):", SPECS), "bytes"}
    assert first_words(of("tokenizers").column("`--tokenizer`")) - {"tokenizer.json"} == kinds
    assert set(of("cli").column("error")) >= set(errors)
    assert set(of("cli").column("command")) == set(COMMANDS)
    callable_ = ("assert_", "prove", "shuffle_", "check_", "trainer_")
    called = {name for name in functions if name.startswith(callable_)}
    assert set(of("testing").column("function")) == called


def test_the_table_of_inputs_says_what_is_read() -> None:
    from jaxdata.converter.inputs.reading import endings, is_readable

    inputs = of("converter").column("input type")
    assert all(is_readable(f"a{ending}") for ending in inputs)
    assert set(inputs) == set(re.findall(r"\.\w+", endings())) - {".gz", ".zst", ".tar"}


def test_every_argument_of_cerebras_is_in_the_table() -> None:
    from jaxdata.foreign.cerebras import translate
    from jaxdata.foreign.cerebras_rules import RULES

    for mode, here in re.findall(r"^\| (\w+) \| `--task (\w+)`", of("foreign").text, re.MULTILINE):
        given = {"mode": mode, "tokenizer_type": "NeoXTokenizer", "encoder_file": "t.json"}
        assert translate(given).options["task"] == here
    section = of("foreign").text.split("## From Cerebras")[1].split("\n## ")[0]
    assert set(RULES) <= set(re.findall(r"`(\w+)`", section))
