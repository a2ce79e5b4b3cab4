"""The files that a model of Hugging Face keeps its tokenizer in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxdata.errors import InputError, MissingExtra
from jaxdata.format.storage.small_files import read_plain

TOKENIZER = "tokenizer.json"
_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"
_TEMPLATE, _OLD_TEMPLATE = "chat_template.jinja", "chat_template.json"
_SLOW = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "sentencepiece.bpe.model")


class ModelFiles:
    """A model's tokenizer files by name, and what those beside `tokenizer.json` say."""

    def __init__(self, contents: Mapping[str, bytes], name: str) -> None:
        self.contents = contents
        self._config, self._map = self._read(_CONFIG, name), self._read(_MAP, name)
        self._old_template = self._read(_OLD_TEMPLATE, name)

    def _read(self, file: str, name: str) -> dict[str, Any]:
        try:
            read = json.loads(self.contents.get(file, b"{}"))
        except ValueError as error:
            raise InputError(f"{file} of {name!r} is not JSON: {error}") from error
        if not isinstance(read, dict):
            raise InputError(f"{file} of {name!r} is not a JSON object")
        return read

    def special_token(self, role: str) -> str | None:
        """The text of the token in a role, such as "eos_token"."""
        token = self._config.get(role) or self._map.get(role)
        content = token.get("content") if isinstance(token, dict) else token
        return content if isinstance(content, str) else None

    def chat_template(self) -> str | None:
        """The template of conversations, the default one where there are several."""
        if _TEMPLATE in self.contents:
            return self.contents[_TEMPLATE].decode()
        template = self._config.get("chat_template") or self._old_template.get("chat_template")
        if isinstance(template, list):
            named = {one.get("name"): one.get("template") for one in template}
            template = named.get("default", next(iter(named.values()), None))
        return template if isinstance(template, str) else None

    def added_tokens(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(id, fields) of each token that the config adds, in the order of ids."""
        known = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
        added = self._config.get("added_tokens_decoder") or {}
        for number in sorted(map(int, added)):
            given = added[str(number)]
            yield number, {key: given[key] for key in known if key in given}


def read_folder(folder: Path) -> dict[str, bytes]:
    """Read the tokenizer's files in a model's folder.

    Raises:
        InputError: there is no tokenizer in it.
        MissingExtra: it has none in the fast form, and `transformers`, which makes that, is not
            installed.
    """
    names = (TOKENIZER, _CONFIG, _MAP, _TEMPLATE, _OLD_TEMPLATE)
    found = {name: read_plain(folder / name) for name in names if (folder / name).is_file()}
    if TOKENIZER in found:
        return found
    if not any((folder / name).is_file() for name in _SLOW):
        raise InputError(f"{folder} holds no {TOKENIZER}, nor another tokenizer's files")
    return {TOKENIZER: _converted(folder), **found}


def _converted(folder: Path) -> bytes:
    """The fast form of a slow tokenizer; runs no code that the folder may bring."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("transformers", "transformers") from error
    try:
        slow = transformers.AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        fast: str = slow.backend_tokenizer.to_str()
    except Exception as error:  # whatever the classes of transformers raise
        raise InputError(
            f"{folder} holds no {TOKENIZER}, and transformers cannot make it from what is there: "
            f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
        ) from error
    return fast.encode()
