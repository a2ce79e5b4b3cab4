"""What becomes of the text, as keyword arguments, and as the parameters of a conversion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from jaxdata.convert.clean import Cleaning
from jaxdata.convert.inputs import InputFile
from jaxdata.convert.limits import Limits
from jaxdata.convert.parameters import Parameters, digests, tokenizer_entry
from jaxdata.convert.parts import unit_bytes_for
from jaxdata.convert.tasks import TaskOptions, TaskSettings, make_settings
from jaxdata.convert.transform import transform_digest, transform_name
from jaxdata.errors import InputError
from jaxdata.tokenizers import Tokenizer

__all__ = ["Options", "make_parameters"]

Model = TypeVar("Model", bound=BaseModel)


class Options(TaskOptions, total=False):
    """Keyword arguments of `convert`, with those of its task; all of them can be left out.

    Attributes:
        task: what records become: "lm" (plain text, if not given), "sft", "fim" or "dpo".
        transform: "module:function", from a record to a record, a list of records, or None; the
            module is imported in each worker.
        keep: keys whose values are kept in the index: `docs.kept(i)`.
        ftfy: mend wrongly decoded text (extra `clean`).
        normalize: a Unicode normal form, "NFC", "NFKC", …
        wikitext: undo the tokenisation of the WikiText corpora.
        min_chars: drop documents of fewer characters, cleaned.
        max_chars: drop documents of more.
        min_tokens: drop documents of fewer tokens, EOD included.
        max_tokens: drop documents of more.
        split_ratio: "train=98,val=1,test=1": deal documents to splits by a hash of each.
        split_by: the key by whose value they are dealt instead.
        split_contiguous: cut them into splits by position instead, as Megatron does.
        record_tokens: longest record, 16,384; longer documents lie in several.
        unit_bytes: text a unit of work holds, about; by the size of the corpus 4 to 64 MiB.
        max_record_bytes: longer lines, texts and values are set aside; 256 MiB.
        piece_bytes: a text file of more than 16 times as many bytes is read in pieces of about so
            many, each a record; 4 MiB. With task "lm" and no transform they are one document cut
            between words: only the last ends with EOD, and their tokens are together those of the
            text, if the tokenizer can be cut there and ASCII words are there. Else each piece is
            a document, cut at a line end.
    """

    task: str | TaskSettings
    transform: str | Callable[[Any], Any] | None
    keep: Sequence[str]
    ftfy: bool
    normalize: Literal["NFC", "NFD", "NFKC", "NFKD"] | None
    wikitext: bool
    min_chars: int | None
    max_chars: int | None
    min_tokens: int | None
    max_tokens: int | None
    split_ratio: str | None
    split_by: str | None
    split_contiguous: bool
    record_tokens: int
    unit_bytes: int
    max_record_bytes: int
    piece_bytes: int


def make_parameters(files: list[InputFile], tokenizer: Tokenizer, options: Options) -> Parameters:
    """Gather the parameters of a conversion; reads the head and tail of every input."""
    given: dict[str, Any] = dict(options)
    transform = given.pop("transform", None)
    task = given.pop("task", "lm")
    own = {name: given.pop(name) for name in TaskOptions.__annotations__ if name in given}
    known = {
        "task": make_settings(task, tokenizer, own) if isinstance(task, str) else task,
        "cleaning": _make(Cleaning, given),
        "limits": _make(Limits, given),
        "transform": transform_name(transform),
        "transform_digest": transform_digest(transform),
        "keep": tuple(given.pop("keep", ())),
        "tokenizer": tokenizer_entry(tokenizer),
        "unit_bytes": unit_bytes_for(sum(file.text_bytes for file in files)),
        "inputs": digests(files),
    }
    if unknown := given.keys() - Options.__annotations__.keys():
        raise TypeError(f"convert() has no argument {sorted(unknown)[0]!r}")
    return _valid(Parameters, known | given)


def _make(model: type[Model], given: dict[str, Any]) -> Model:
    """Take what a model wants out of what is given."""
    return _valid(model, {name: given.pop(name) for name in model.model_fields if name in given})


def _valid(model: type[Model], fields: dict[str, Any]) -> Model:
    try:
        return model(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise InputError(f"{name}={first.get('input')!r}: {first['msg']}") from None
