"""Conversations as spans that end with EOD, written by a chat template or by prefixes.

Text between turns that seems to be tokens is looked at once before a conversion.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

from jaxdata.base.errors import InputError, WorkerDied, extra_module, log
from jaxdata.base.processes import Worker
from jaxdata.base.settings import setting
from jaxdata.converter.chat.conversations import Conversation
from jaxdata.converter.chat.families import FORMATS, named_template
from jaxdata.converter.inputs.parsing import BadRecord, plain_value
from jaxdata.converter.tasks import Settings, Span
from jaxdata.storage.small_files import read_small
from jaxdata.tokenizers import Tokenizer

AFFIXES = ("separator", "prompt_prefix", "completion_prefix")
"""Options that write what is between turns, without a chat template."""

_WITHOUT_TEMPLATE = ", where there is no chat template."
TRAIN_ON = "Answers of a conversation that have loss."


class TurnSettings(Settings):
    """The settings that all tasks of prompts and answers have."""

    key_options: ClassVar[str] = "--prompt-key, --completion-key or --messages-key"

    separator: str = setting(
        "", f"Text between a prompt and its answer{_WITHOUT_TEMPLATE}", escapes=True
    )
    prompt_prefix: str = setting("", f"Text before each prompt{_WITHOUT_TEMPLATE}", escapes=True)
    completion_prefix: str = setting(
        "", f"Text before each answer, without loss{_WITHOUT_TEMPLATE}", escapes=True
    )
    train_on: Literal["all", "last"] = setting("all", TRAIN_ON)
    chat_template: str | None = setting(
        None,
        f"{', '.join(FORMATS)}, a file of Jinja, tokenizer or none.",
        metavar="NAME",
        shown="the tokenizer's",
    )
    """The template itself, when read; with it, none of the affixes above is written."""

    @classmethod
    def completed(cls, given: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
        named = given.get("chat_template")
        if not isinstance(named, str | None):
            raise InputError(
                f"chat_template={named!r}: expected a name, a file, 'tokenizer', 'none' or None"
            )
        affixes = [name for name in AFFIXES if given.get(name)]
        if named not in (None, "none") and affixes:
            raise InputError(
                f"{affixes[0]} cannot be combined with a chat template, which writes everything "
                "between turns: give one"
            )
        plain = affixes or given.get("prompt_key") or given.get("completion_key")
        found = None if named is None and plain else find_template(named, tokenizer)
        return {**given, "chat_template": found}


def _turn_spans(conversation: Conversation, written: TurnSettings, eod: int) -> list[Span]:
    """Write a conversation without a template: prompts, then answers that end with EOD.

    Messages other than answers are prompts, each with its prefix; the separator is put between
    the last of them and the answer.
    """
    spans: list[Span] = []
    for number, message in enumerate(conversation.messages):
        answers = message["role"] == "assistant"
        before = [written.separator if number else "", written.completion_prefix]
        affixes = before if answers else [written.prompt_prefix]
        spans += [Span(affix, False, special=True) for affix in affixes if affix]
        texts = [message["content"] or "", *[eod] * answers]
        spans += [Span(text, conversation.losses[number] and answers) for text in texts]
    return spans if spans[-1].content == eod else [*spans, Span(eod, False)]


_SECONDS = 4.0
"""CPU time of one rendering, about; what two hundred turns need is some milliseconds."""
_MOST_ENDED = 3
_OWN_FAULT = {
    "SIGXCPU": f"takes more than {_SECONDS:.0f} seconds",
    **dict.fromkeys(("SIGSEGV", "SIGBUS", "SIGABRT"), "crashes the process that it runs in"),
}
_LONGEST = 2**28
"""Bytes of an answer; `sandbox` gives up before."""
_PROBE = (("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four"))


class ChatTemplate:
    """A Jinja template of conversations, run in a process of its own (see `sandbox`).

    Where it has `{% generation %}` blocks, these are the assistant's. Otherwise a turn is what
    the conversation up to it adds to that before it with the prompt for an answer, which asks of
    a template that it writes turn after turn.

    Args:
        source: the template.
        variables: its variables other than the messages.
        special: the texts of special tokens.
        every_turn: whether all answers must be told apart, or only the last.

    Raises:
        InputError: it does not compile, or cannot write even a simple conversation.
        MissingExtra: jinja2 is not installed.
    """

    _worker: Worker | None = None

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        special: Iterable[str] = (),
        *,
        every_turn: bool = True,
    ) -> None:
        extra_module("chat", "jinja2")
        from jaxdata.converter.chat.sandbox import serve

        given = {"source": source, "variables": dict(variables), "special": tuple(special)}
        self._start = partial(Worker, serve, given | {"seconds": _SECONDS})
        self._ended = 0
        probe = Conversation.of([(role, content, role == "assistant") for role, content in _PROBE])
        try:
            self.spans(probe if every_turn else probe.last_only())
        except BadRecord as error:
            raise InputError(
                f"{error.reason}, even for two plain questions and answers. Give another template "
                "with --chat-template; or tell which words are the assistant's: mark them in the "
                "template with {% generation %} … {% endgeneration %}, or train on the last answer "
                "of each conversation only, with --train-on last"
            ) from error

    def __del__(self) -> None:
        if self._worker:
            self._worker.close()

    def spans(self, conversation: Conversation) -> list[Span]:
        """Return spans with and without loss.

        Raises:
            BadRecord: the template fails, or its process was ended at a limit.
            InputError: that happened a few times; each costs seconds.
        """
        try:
            text = json.dumps(vars(conversation), ensure_ascii=False, default=plain_value)
        except (TypeError, ValueError):  # a transform can put anything into a record
            raise BadRecord("messages or 'tools' cannot be written as JSON") from None
        answer = self._ask(text.encode("utf-8", "surrogatepass"))
        if "compiled" in answer:
            raise InputError(f"the chat template cannot be compiled: {answer['compiled']}")
        if "ended" in answer:
            self._ended += 1
            answer["fails"] = f"the chat template was ended: it {answer['ended']}"
            if self._ended == _MOST_ENDED:
                raise InputError(
                    f"{answer['fails']}. So it was at {_MOST_ENDED} conversations: give another "
                    "template with --chat-template, or leave such conversations out"
                )
        if "fails" in answer:
            raise BadRecord(answer["fails"])
        return [Span(text, loss, special=True) for text, loss in answer["spans"]]

    def _ask(self, request: bytes, again: bool = True) -> dict[str, Any]:
        """The answer to a request (see `sandbox.serve`); raises WorkerDied."""
        if self._worker is None or self._worker.connection.closed:  # in a forked copy it is, too
            self._worker = self._start()
        worker = self._worker
        try:
            worker.guarded(worker.connection.send_bytes, request)
            data = worker.guarded(worker.connection.recv_bytes, _LONGEST)
        except BaseException as error:  # an interrupt, say: its answer would be the next one's
            worker.close()
            if not isinstance(error, WorkerDied):
                raise
            if worker.signal in _OWN_FAULT:
                return {"ended": _OWN_FAULT[worker.signal]}
            if not again:
                raise
            return self._ask(request, again=False)  # killed by the kernel, say, that needs memory
        answer: dict[str, Any] = json.loads(data)
        if "ended" in answer:  # its memory is in pieces
            worker.close()
        return answer


def find_template(given: str | None, tokenizer: Tokenizer) -> str | None:
    """Return the template of a name or in a file, or the tokenizer's; None for "none".

    `given` may also be a template itself; None asks for the tokenizer's, if it has one.
    """
    if given == "none":
        return None
    if given in (None, "tokenizer"):
        if given and tokenizer.chat_template is None:
            raise InputError(
                f"tokenizer {tokenizer.name!r} has no chat template; give one with "
                f"--chat-template, by its name ({', '.join(FORMATS)}) or as a Jinja file, or "
                "--chat-template none to use prefixes"
            )
        return tokenizer.chat_template
    assert given is not None
    if "{%" in given or "{{" in given:
        return given
    try:
        return named_template(given) if given in FORMATS else read_small(given).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--chat-template {given!r} is none of {', '.join(FORMATS)}, and no file that can be "
            f"read: {error}"
        ) from error


class ConversationFormatter:
    """Writes conversations by a chat template, or by prefixes."""

    def __init__(self, settings: TurnSettings, tokenizer: Tokenizer) -> None:
        self._settings, self._eod = settings, tokenizer.eod_id
        special = tokenizer.special_tokens
        by_id = {i: text for text, i in special.items()}
        self._eod_text, self._special_texts = by_id.get(self._eod), tuple(special)
        self._special = re.compile("|".join(map(re.escape, special)) or "(?!)")  # or nothing
        self._template = None
        if settings.chat_template is not None:
            ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eod_id, "pad": tokenizer.pad_id}
            named = {f"{role}_token": by_id.get(i, "") for role, i in ids.items() if i is not None}
            self._template = ChatTemplate(
                settings.chat_template, named, special, every_turn=settings.train_on == "all"
            )

    def __call__(self, conversation: Conversation) -> list[Span]:
        """Return the spans, EOD last; raises BadRecord if the conversation cannot be written."""
        if self._template is None:
            return _turn_spans(conversation, self._settings, self._eod)
        for text in conversation.strings():  # forged is what only the template may write
            if found := self._special.search(text):
                raise BadRecord(f"a message holds the special token {found.group()!r}")
            if "\ufdd0" in text or "\ufdd1" in text:
                raise BadRecord("a message holds a code point that is no character")
        return self._ended(self._template.spans(conversation))

    def check_roles_are_told(self) -> None:
        """Raise BadRecord if nothing would mark who speaks."""
        if self._template is None and not any(getattr(self._settings, name) for name in AFFIXES):
            raise BadRecord(
                "a conversation, and neither a chat template nor prefixes to write it with "
                "(--chat-template chatml, say, or prompt_prefix and completion_prefix)"
            )

    def _ended(self, spans: list[Span]) -> list[Span]:
        """End with EOD once; it has loss if nothing else ends the answer."""
        whole = "".join(str(span.content) for span in spans)
        written = whole.rstrip()
        if self._eod_text and written.endswith(self._eod_text):
            # What a template writes after its last token ("\n") begins the next turn.
            return _cut(spans, len(whole) - len(written))
        over = written.endswith(self._special_texts)
        return [*spans, Span(self._eod, spans[-1].loss and not over)]


def _cut(spans: list[Span], count: int) -> list[Span]:
    """Spans without their last `count` characters."""
    *before, last = spans
    text = str(last.content)
    if count < len(text):
        return [*before, replace(last, content=text[: len(text) - count])]
    return _cut(before, count - len(text))


_LOOKS_SPECIAL = re.compile(
    r"<[|\uff5c][^<>|\uff5c\s]{1,64}[|\uff5c]>"  # <|im_start|>, and DeepSeek's wide bars
    r"|</?s>|<(?:bos|eos|pad|unk|sep|cls)>"
    r"|</?(?:start|end)_of_[a-z]+>"  # Gemma's <start_of_turn>
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_[A-Z]+)\]"  # Mistral's
    r"|<</?[A-Z]{2,16}>>"  # Llama 2's <<SYS>>
)
_PROBE_TURNS = (("user", "a", False), ("assistant", "b", True), ("user", "c", False))


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
    if not (settings.chat_template or settings.separator or settings.completion_prefix):
        log.warning(
            "nothing will stand between a prompt and its answer: give separator, prompt_prefix "
            "and completion_prefix, or --chat-template, unless the prompts end as they should"
        )
    probe = Conversation.of(_PROBE_TURNS[: 2 if settings.train_on == "last" else 3])
    spans = ConversationFormatter(settings, tokenizer)(probe)
    fixed = "\n".join(str(span.content) for span in spans if span.special)
    found = texts_like_tokens(fixed)
    encoded = tokenizer.encode(found, special=True, continuing=True)
    pairs = zip(found, encoded, strict=True)
    texts = {text: f"{text} ({len(ids)} tokens)" for text, ids in pairs if len(ids) != 1}
    if texts and not allowed:
        raise InputError(
            "the chat template, or a prefix, writes what looks like special tokens, but is text to "
            f"the tokenizer {tokenizer.name!r}: {', '.join(texts.values())}. Use a tokenizer that "
            f"has them: add them with --add-special '{','.join(texts)}' (in Python: "
            "tokenizers.load(..., add_special=[...])), or train one with `jaxdata tokenizer train "
            "--special`. If the model was trained on this text, give template_text_ok=true "
            "(template_text_ok=True)"
        )
    if texts:
        log.warning("text, and no special tokens of %r: %s", tokenizer.name, ", ".join(texts))
