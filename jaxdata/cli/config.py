"""What every command about a run takes, CONFIG or DATASET and overrides; and `jaxdata config`."""

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from jaxdata.base.errors import nearest
from jaxdata.base.settings import setting
from jaxdata.cli.options import Command, command
from jaxdata.look.terminal import printable_lines

if TYPE_CHECKING:
    from jaxdata.config import Config


class Given(NamedTuple):
    """What a command is about: a dataset, a config, or a config for a dataset."""

    dataset: str | None
    config: str | None
    overrides: tuple[str, ...]

    def settings(self) -> "Config":
        """The config; of a dataset alone, one with nothing but the dataset."""
        from jaxdata.config.config_reader import load_config, parse_overrides

        named = {} if self.dataset is None else {"dataset": self.dataset}
        return load_config(self.config or {}, parse_overrides(self.overrides) | named)


class RunCommand(Command):
    """A command that is `given` a config or a dataset, with any field of the config as an option.

    Args:
        *words: as of `Command`.
        takes: what may be bare. A `CONFIG` must be given, and may be named by `--config`; beside
            that, of `DATASET|CONFIG`, a bare word is the dataset.
        **more: as of `Command`.
    """

    injected = ("given",)

    def __init__(
        self,
        *words: Any,
        takes: Literal["CONFIG", "[CONFIG]", "DATASET|CONFIG"] = "DATASET|CONFIG",
        **more: Any,
    ) -> None:
        super().__init__(*words, context_settings={"ignore_unknown_options": True}, **more)
        self.takes = takes
        said = "CONFIG: a YAML file, or the name of a config shipped with jaxdata."
        self.params.insert(0, click.Option(["--config"], help=said))
        shown = f"{takes} [--FIELD VALUE]..."
        bare = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED, metavar=shown)
        self.params.append(bare)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`; what is neither an option nor a field is no such option."""
        rest = super().parse_args(ctx, args)
        config, words = ctx.params.pop("config"), ctx.params.pop("words")
        self._check_fields(ctx, words)
        ctx.params["given"] = self.given(config, words, ctx.params)
        return rest

    def given(self, config: str | None, words: tuple[str, ...], asked: dict[str, Any]) -> Given:  # noqa: ARG002
        """What `--config` and the other words are about; `asked` are the command's own options."""
        if self.takes != "DATASET|CONFIG":
            if config is None:
                config, words = bare_word(words)
            if config is None and self.takes == "CONFIG":
                raise click.UsageError(
                    "give CONFIG: a YAML file, or the name of a config shipped with jaxdata: "
                    + ", ".join(sorted(_shipped()))
                )
            return Given(None, config, words)
        bare, words = bare_word(words)
        if bare is None and config is None:
            raise click.UsageError("give a DATASET, which is a folder or URL, or a CONFIG")
        if config is None and is_config(bare):
            return Given(None, bare, words)
        meant = "" if bare is None or Path(bare).exists() else nearest(bare, _shipped())
        if meant:
            raise click.UsageError(f"{bare} is neither a dataset nor a config{meant}")
        return Given(bare, config, words)

    def _check_fields(self, ctx: click.Context, words: tuple[str, ...]) -> None:
        typed = [text.partition("=")[0].partition(".")[0] for text in words if text[:2] == "--"]
        if typed:
            from jaxdata.config import Config

            own = [name for one in self.params for name in one.opts if name[:2] == "--"]
            known = [*own, *(f"--{name}" for name in Config.model_fields)]
            for name in typed:
                if name not in known:
                    near = difflib.get_close_matches(name, known, 1)
                    raise click.NoSuchOption(name, possibilities=near, ctx=ctx)


def _shipped() -> dict[str, Path]:
    from jaxdata.config.config_reader import packaged_configs

    return packaged_configs()


def is_config(name: str | None) -> bool:
    """Whether a config is meant, by its suffix or as one that ships with jaxdata; else data is."""
    path = Path(name or "")
    shipped = name in _shipped() and not (path / "dataset.json").is_file()
    return shipped or path.suffix in (".yaml", ".yml", ".json")


def bare_word(words: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The first text that is neither a field nor the value of one, and the other words."""
    place = 0
    while place < len(words):
        text = words[place]
        if not text.startswith("-"):
            return text, words[:place] + words[place + 1 :]
        place += 1 if "=" in text else 2
    return None, words


_EPILOG = """\b
Examples:
  jaxdata config                          the fields and their defaults
  jaxdata config --all                    those for experts, too
  jaxdata config pretrain --seed 1        a config, and where it says what
  jaxdata config pretrain > mine.yaml     a config of your own
  jaxdata config --schema > schema.json   for editors; a YAML file begins with
    # yaml-language-server: $schema=schema.json
"""


@command(cls=RunCommand, takes="[CONFIG]", epilog=_EPILOG)
def config(
    given: Given,
    whole: bool = setting(False, "Print the fields for experts, too.", flag="--all"),
    schema: bool = setting(False, "Print a JSON Schema of all fields."),
) -> None:
    """Print the fields of a config: what each means, its value, its default and where it was set.

    What is printed is a config itself. Without CONFIG, fields have their defaults. Fields for
    experts are printed where CONFIG sets them, or all of them with --all.
    """
    from jaxdata.config.annotated import annotated, config_schema
    from jaxdata.config.config_reader import parse_overrides

    if schema:
        click.echo(json.dumps(config_schema(), indent=1))
        return
    overrides = parse_overrides(given.overrides)
    click.echo(printable_lines(annotated(given.config, overrides, whole=whole)), nl=False)
