"""Tokenizers of Hugging Face's `tokenizers` library (`hf:` a tokenizer.json, or a folder).

GPT-2's own two files become a `tokenizer.json`.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from jaxdata.base.errors import InputError, extra_module, log
from jaxdata.base.lazy import cached_property
from jaxdata.tokenizers import base
from jaxdata.tokenizers.base import SpecialToken, Tokenizer

TOKENIZER = "tokenizer.json"
_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
_GPT2 = (("vocab.bpe", "encoder.json"), ("merges.txt", "vocab.json"))
_END = "<|endoftext|>"
_USUAL = {
    "eos_token": (_END, "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "<|eot_id|>", "[SEP]"),
    "bos_token": ("<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "[CLS]"),
    "pad_token": ("<pad>", "<|padding|>", "<|pad|>", "<|finetune_right_pad_id|>", "[PAD]"),
}
_ADDED = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


class HuggingFaceTokenizer(Tokenizer):
    """A `tokenizer.json`; its truncation, padding, templates and dropout are switched off.

    Special tokens in a text are encoded as plain text; added tokens that are not special (the
    runs of spaces of GPT-NeoX) are recognised, as the library does. The model's other files say
    which token ends a document and how conversations are written.
    """

    kind = "hf"

    def __init__(self, files: Mapping[str, bytes], *, name: str, **chosen: SpecialToken) -> None:
        self.name = name
        self._files = dict(files)
        self._config, self._map = self._read(_CONFIG), self._read(_MAP)
        self._tokenizer = self._make()
        if getattr(self._tokenizer.model, "dropout", None):
            self._tokenizer.model.dropout = None
            self._files[TOKENIZER] = self.as_json().encode()
            log.warning(
                "%s of %r has dropout: two encodings of a text would differ. It is switched off, "
                "also in the copy that a dataset keeps",
                TOKENIZER,
                name,
            )
        self._vocab: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = max(self._vocab.values(), default=-1) + 1
        self.chat_template = self._template()
        self.choose_special_ids(*map(self._own, _USUAL), **chosen)

    def _read(self, file: str) -> dict[str, Any]:
        with base.told_as(InputError, f"{file} of {self.name!r} is not JSON"):
            read = json.loads(self._files.get(file, b"{}"))
        if not isinstance(read, dict):
            raise InputError(f"{file} of {self.name!r} is not a JSON object")
        return read

    def _make(self) -> Any:
        tokenizers = extra_module("hf", "tokenizers")
        with base.told_as(InputError, f"{self.name!r} is not a {TOKENIZER} of Hugging Face"):
            made = tokenizers.Tokenizer.from_buffer(self._files[TOKENIZER])
        made.no_truncation()
        made.no_padding()
        added = self._config.get("added_tokens_decoder") or {}
        for wanted in sorted(map(int, added)):
            given = added[str(wanted)]
            token = tokenizers.AddedToken(**{key: given[key] for key in _ADDED if key in given})
            if made.token_to_id(token.content) is None:
                (made.add_special_tokens if token.special else made.add_tokens)([token])
                if (got := made.token_to_id(token.content)) != wanted:
                    raise InputError(
                        f"{_CONFIG} of {self.name!r} gives {token.content!r} the id {wanted}, "
                        f"which {TOKENIZER} cannot: it would be {got}. Save both with transformers"
                    )
        return made

    def _template(self) -> str | None:
        """The template of conversations, the default one where there are several."""
        if _TEMPLATE in self._files:
            return self._files[_TEMPLATE].decode()
        template = self._config.get("chat_template")
        if isinstance(template, list):
            named = {one.get("name"): one.get("template") for one in template}
            template = named.get("default", next(iter(named.values()), None))
        return template if isinstance(template, str) else None

    def _own(self, role: str) -> SpecialToken:
        """The text of the token in a role, such as "eos_token"."""
        token = self._config.get(role) or self._map.get(role)
        content = token.get("content") if isinstance(token, dict) else token
        return next((name for name in (content, *_USUAL[role]) if name in self._vocab), None)

    @classmethod
    def load(cls, spec: str, paths: Sequence[Path], /, **chosen: SpecialToken) -> Self:
        """Make one of a tokenizer.json or a model's folder; or, for gpt2:, of GPT-2's two files."""
        if spec.startswith("gpt2:"):
            files = {TOKENIZER: _of_gpt2(spec, paths)}
        elif paths[0].is_dir():
            files = _read_folder(spec, paths[0])
        else:
            files = {TOKENIZER: base.read_file(paths[0], spec)}
        return cls(files, name=paths[0].name, **chosen)

    def extended(self, texts: Sequence[str], **ids: int | None) -> "HuggingFaceTokenizer":
        library = self._make()
        library.add_special_tokens(list(texts))
        content = {TOKENIZER: library.to_str().encode()}
        return HuggingFaceTokenizer({**self._files, **content}, name=self.name, **ids)

    @cached_property
    def unk_id(self) -> int | None:
        model = self.settings["model"]
        found = model.get("unk_id")  # of Unigram; other models name a piece
        return found if isinstance(found, int) else self._vocab.get(model.get("unk_token") or "")

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        added = self._tokenizer.get_added_tokens_decoder().items()
        return {token.content: i for i, token in added if token.special}

    def token_id(self, text: str) -> int | None:
        return self._vocab.get(text)

    @cached_property
    def cuts_between_words(self) -> bool:
        for token in self._tokenizer.get_added_tokens_decoder().values():
            around = token.lstrip or token.rstrip or re.search("[A-Za-z] [A-Za-z]", token.content)
            if around and not token.special:
                return False
        local = all(step["type"] in _LOCAL for step in steps_of(self.settings["normalizer"]))
        return local and any(map(_splits, steps_of(self.settings["pre_tokenizer"])))

    def encode_texts(self, texts: Sequence[str], special: bool) -> list[np.ndarray]:
        self._tokenizer.encode_special_tokens = not special  # True: as plain text
        with base.told_as(base.CannotEncode, f"{self.name!r} cannot encode a text"):
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def decode_ids(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def piece_bytes(self) -> Sequence[bytes]:
        spelt = spelling(self.settings)
        pieces = [b""] * self.vocab_size
        for piece, i in self._vocab.items():
            pieces[i] = spelt(piece)
        for i, token in self._tokenizer.get_added_tokens_decoder().items():
            pieces[i] = b"" if token.special else token.content.encode()
        if self.unk_id is not None:
            pieces[self.unk_id] = b""
        return pieces

    def files(self) -> dict[str, bytes]:
        return dict(self._files)

    def as_json(self) -> str:
        """The whole tokenizer, as a `tokenizer.json` has it, with what the other files add."""
        return str(self._tokenizer.to_str())

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What `as_json` says."""
        settings: dict[str, Any] = json.loads(self.as_json())
        return settings


def _read_folder(spec: str, folder: Path) -> dict[str, bytes]:
    """The tokenizer's files in a model's folder."""
    there = [name for name in (TOKENIZER, _CONFIG, _MAP, _TEMPLATE) if (folder / name).is_file()]
    found = {name: base.read_file(folder / name, spec) for name in there}
    if TOKENIZER not in found:
        raise InputError(
            f"{folder} holds no {TOKENIZER}: of a slow tokenizer transformers makes one, by "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained(FOLDER); a "
            "tokenizer.model may also be one of sentencepiece:FILE"
        )
    return found


def _of_gpt2(spec: str, paths: Sequence[Path]) -> bytes:
    """GPT-2's merges and vocabulary, or a folder with both, as one tokenizer.json."""
    named = [paths] if len(paths) == 2 else [[paths[0] / name for name in pair] for pair in _GPT2]
    found = next((pair for pair in named if all(path.is_file() for path in pair)), None)
    if found is None:
        raise InputError(
            f"{spec}: no folder with vocab.bpe and encoder.json (or merges.txt and vocab.json); "
            "name both files: gpt2:MERGES,VOCABULARY"
        )
    merges, vocabulary = (base.read_file(path, spec) for path in found)
    with base.told_as(InputError, f"{spec!r} is not the vocabulary of GPT-2's kind"):
        ids: dict[str, int] = dict(json.loads(vocabulary))
        lines = [line for line in merges.decode().split("\n") if line.strip()]
        pairs = [line.split(" ") for line in lines if not line.startswith("#version")]
        if wrong := next((pair for pair in pairs if len(pair) != 2), None):
            raise ValueError(f"the merge {' '.join(wrong)!r} is not two pieces and a space between")
        return byte_level(ids, pairs, [_END] if _END in ids else [], None)


def byte_level(
    ids: dict[str, int], merges: Sequence[Sequence[str]], special: Sequence[str], rule: str | None
) -> bytes:
    """Byte-level BPE as a `tokenizer.json`; words are split by a rule, or as GPT-2 does."""
    hf = extra_module("hf", "tokenizers")
    made = hf.Tokenizer(hf.models.BPE(vocab=ids, merges=[*map(tuple, merges)]))
    made.pre_tokenizer = splitting(rule)
    made.decoder = hf.decoders.ByteLevel(add_prefix_space=False)
    made.add_special_tokens([*special])
    return str(made.to_str(pretty=True)).encode() + b"\n"


def splitting(rule: str | None) -> Any:
    """How byte-level BPE splits a text into words: by a regular expression; None for GPT-2's."""
    hf = extra_module("hf", "tokenizers")
    steps = hf.pre_tokenizers
    bytes_of_words = steps.ByteLevel(add_prefix_space=False, use_regex=rule is None)
    if rule is None:
        return bytes_of_words
    return steps.Sequence([steps.Split(hf.Regex(rule), "isolated"), bytes_of_words])


_SPACE = "\u2581"  # how Metaspace, and Replace in its place, write a space
_LOCAL = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend"}  # change nothing between letters


def spelling(settings: dict[str, Any]) -> Callable[[str], bytes]:
    """A function from a piece of the vocabulary to its bytes of text."""
    kinds = {part["type"] for part in steps_of([settings["pre_tokenizer"], settings["decoder"]])}
    if "ByteLevel" in kinds:
        # GPT-2's alphabet writes every byte as one character.
        return lambda piece: bytes(base.BYTE_ALPHABET.get(character, 0xFF) for character in piece)
    byte_fallback = bool(settings["model"].get("byte_fallback"))
    joint = str(settings["model"].get("continuing_subword_prefix") or "")

    def spelt(piece: str) -> bytes:
        if byte_fallback and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.removeprefix(joint).replace(_SPACE, " ").encode()

    return spelt


def _splits(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether this step alone ends a piece before each space between letters."""
    kind = pre_tokenizer["type"]
    if kind == "ByteLevel":
        return bool(pre_tokenizer.get("use_regex", True))
    if kind == "Metaspace":
        return bool(pre_tokenizer.get("split", True))
    return (
        kind == "Split"
        and pre_tokenizer["pattern"].get("Regex") in base.KNOWN_SPLITS
        and pre_tokenizer["behavior"] == "Isolated"
        and not pre_tokenizer.get("invert")
    )


def steps_of(setting: Any) -> Iterator[dict[str, Any]]:
    """The steps of a part of tokenizer.json, with sequences flattened."""
    if isinstance(setting, list):
        for one in setting:
            yield from steps_of(one)
    elif isinstance(setting, dict) and setting["type"] == "Sequence":
        yield from steps_of(next(value for value in setting.values() if isinstance(value, list)))
    elif isinstance(setting, dict):
        yield setting
