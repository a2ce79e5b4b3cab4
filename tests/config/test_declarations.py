"""A setting is declared once: functions, commands, sections and schema say what its model says."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import pytest
from pydantic_core import PydanticUndefined

import jaxdata
import jaxdata.rows.megatron
from jaxdata.base.numbers import kinds_of, types_of
from jaxdata.base.settings import Settings
from jaxdata.cli import cli
from jaxdata.config import Config
from jaxdata.config.config_fields import AmendmentSection, PhaseSection
from jaxdata.converter.parameters import options
from jaxdata.feed.settings import LoaderSection
from jaxdata.rows.map_datasets import MixedDataset
from jaxdata.rows.megatron.order import GptSettings
from jaxdata.rows.packing.settings import PackSettings

ORDER = {"chunk_bytes", "block_bytes", "lanes", "reshuffle"}
FUNCTIONS: list[tuple[Callable[..., Any], type[Settings], set[str]]] = [
    (jaxdata.pack, PackSettings, {"shuffle"}),
    (jaxdata.evaluation_rows, PackSettings, {"shuffle", "seed", *ORDER}),
    (jaxdata.rows.megatron.gpt, GptSettings, set()),
    (jaxdata.rows.megatron.blend, GptSettings, set()),
    (jaxdata.Loader.__init__, LoaderSection, set()),
]
"""a function, the model of its settings, and the fields that it does not take"""


@pytest.mark.parametrize(("function", "model", "without"), FUNCTIONS)
def test_a_function_takes_the_fields_of_its_model(function: Any, model: Any, without: Any) -> None:
    parameters, types = inspect.signature(function).parameters, types_of(function)
    assert model.model_fields.keys() - parameters.keys() == without
    for name, field in model.model_fields.items():
        if name in without or name == "batch_size":  # of a config it has a default
            continue
        default = field.get_default(call_default_factory=True)
        given = parameters[name].default
        if default is PydanticUndefined:
            assert given is inspect.Parameter.empty, name
        else:
            assert (list(given) if isinstance(given, tuple) else given) == default, name
        if name != "add_extra_token_to_sequence" and model is not LoaderSection:
            assert kinds_of(types[name]) == kinds_of(field.annotation), name


def same(*names: str, **others: str) -> dict[str, str]:
    return {name: name for name in names} | others


BUDGETS = same("tokens", "rows", "steps", "batch_size", weights="mix")
SHARED: list[tuple[Callable[..., Any], type[Settings], dict[str, str]]] = [
    (jaxdata.mix, Config, same("epochs", "on_exhaustion")),
    (MixedDataset.amend, AmendmentSection, same("epochs", "on_exhaustion", phases="curriculum")),
    (jaxdata.Phase.__init__, PhaseSection, BUDGETS),
    (jaxdata.materialize, LoaderSection, same("layout", "skip_rows", "extras")),
    (jaxdata.pairs, PackSettings, same("seq_len", "seed", "shuffle")),
]
"""a function, the section that says the same, and its arguments by the names of the fields"""


@pytest.mark.parametrize(("function", "model", "arguments"), SHARED)
def test_what_a_section_says_too_has_the_default_and_the_values_of_its_argument(
    function: Callable[..., Any], model: type[Settings], arguments: dict[str, str]
) -> None:
    parameters, types = inspect.signature(function).parameters, types_of(function)
    for argument, name in arguments.items():
        field = model.model_fields[name]
        given, default = parameters[argument].default, field.get_default(call_default_factory=True)
        assert name in ("mix", "seq_len") or (given or None) == (default or None), argument
        kinds = [*kinds_of(types[argument]), *kinds_of(field.annotation)]
        names = [{*get_args(kind)} for kind in kinds if get_origin(kind) is Literal]
        assert not names or names[0] == names[1], argument


def test_the_command_convert_has_every_option_of_a_conversion() -> None:
    convert = cli.get_command(click.Context(cli), "convert")
    assert convert is not None
    typed = ["texts/", "--output", "o", "--source", "s", "--tokenizer", "bytes"]
    with convert.make_context("convert", typed) as context:
        found = {one.name: one for one in convert.get_params(context)}
    for name, option in options().items():
        assert found[name].help == option.help  # type: ignore[attr-defined]
        assert context.params[name] is None, "a task may have a default of its own"


def test_a_config_has_at_most_60_fields_that_are_not_for_experts() -> None:
    schema = json.loads((Path(__file__).parents[2] / "configs/schema.json").read_text())
    models = [schema, *schema["$defs"].values()]
    fields = [field for model in models for field in model.get("properties", {}).values()]
    assert 40 < sum("advanced" not in field for field in fields) <= 60
