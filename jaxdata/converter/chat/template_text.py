"""What stands between turns, looked at once before a conversion: text that seems to be tokens.

A template's `<|im_start|>` is one token only if the vocabulary has it; else it is text, which most
tokenizers cut into half a dozen pieces, and no model was trained so.
"""

from __future__ import annotations

import logging
import re

from jaxdata.converter.chat.conversations import Conversation
from jaxdata.converter.chat.formatting import ConversationFormatter
from jaxdata.converter.tasks.base import Settings
from jaxdata.converter.tasks.conversation_turns import TurnSettings
from jaxdata.errors import InputError
from jaxdata.tokenizers import Tokenizer

_log = logging.getLogger("jaxdata")
_LOOKS_SPECIAL = re.compile(
    r"<[|\uff5c][^<>|\uff5c\s]{1,64}[|\uff5c]>"  # <|im_start|>, and DeepSeek's wide bars
    r"|</?s>|<(?:bos|eos|pad|unk|sep|cls)>"
    r"|</?(?:start|end)_of_[a-z]+>"  # Gemma's <start_of_turn>
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_[A-Z]+)\]"  # Mistral's
    r"|<</?[A-Z]{2,16}>>"  # Llama 2's <<SYS>>
)
_PROBE = (("user", "a", False), ("assistant", "b", True), ("user", "c", False))
_BETWEEN = ("chat_template", "separator", "completion_prefix", "eod_after_prompt")


def texts_like_tokens(text: str) -> list[str]:
    """The parts of a text that look like special tokens, each once, in order.

    These are `<|…|>` without spaces, `<s>`, `</s>`, `<bos>` and its like, `<start_of_…>`,
    `<end_of_…>`, `[INST]` and its like, and `<<SYS>>`.

    >>> texts_like_tokens("<|im_start|>user [1] <b>[INST] a <| b |> </s><|im_start|>")
    ['<|im_start|>', '[INST]', '</s>']
    """
    return list(dict.fromkeys(_LOOKS_SPECIAL.findall(text)))


def check_template_text(settings: Settings, tokenizer: Tokenizer, *, allowed: bool) -> None:
    """Look at what a chat template, or prefixes and a separator, write around the turns.

    What looks like a special token (see `texts_like_tokens`) and is not one token of the
    vocabulary is refused, or logged where it is `allowed`. That nothing stands between a prompt and
    its answer is logged.

    Raises:
        InputError: text looks like special tokens that the vocabulary lacks.
    """
    if not isinstance(settings, TurnSettings):
        return
    if not any(getattr(settings, name) for name in _BETWEEN):
        _log.warning(
            "nothing will stand between a prompt and its answer: give --separator, --prompt-prefix "
            "and --completion-prefix, or --chat-template, unless the prompts end as they should"
        )
    found = texts_like_tokens(_fixed_text(settings, tokenizer))
    pieces = {
        text: len(tokenizer.encode([text], special=True, continuing=True)[0]) for text in found
    }
    if texts := {text: count for text, count in pieces.items() if count != 1}:
        if not allowed:
            raise InputError(_refusal(settings, tokenizer, texts))
        named = ", ".join(texts)
        _log.warning("text, and no special tokens of %r: %s", tokenizer.name, named)


def _fixed_text(settings: TurnSettings, tokenizer: Tokenizer) -> str:
    """What is written around the turns of a short conversation."""
    probe = Conversation.of(_PROBE[: 2 if settings.train_on == "last" else 3])
    spans = ConversationFormatter(settings, tokenizer)(probe)
    return "\n".join(str(span.content) for span in spans if span.special)


def _refusal(settings: TurnSettings, tokenizer: Tokenizer, texts: dict[str, int]) -> str:
    where = "the chat template writes" if settings.chat_template else "the prefixes write"
    named = ", ".join(f"{text} ({count} tokens)" for text, count in texts.items())
    added = (
        f"; add them with --add-special '{','.join(texts)}' (in Python: tokenizers.load(..., "
        "add_special=[...]))"
    ) * bool(tokenizer.files())  # without a file, nothing can be added
    return (
        f"{where} what looks like special tokens, but is text to the tokenizer "
        f"{tokenizer.name!r}: {named}. Use a tokenizer that has them{added}; or "
        "train one with `jaxdata tokenizer train --special`. If the model was trained on this "
        "text, give --template-text-ok (template_text_ok=True)"
    )
