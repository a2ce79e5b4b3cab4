"""Conversations written by a chat template, and which characters are the assistant's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxdata.converter.chat.conversations import Conversation
from jaxdata.converter.inputs.parsing import BadRecord
from jaxdata.converter.tasks.spans import Span
from jaxdata.errors import InputError, MissingExtra
from jaxdata.format.storage.small_files import read_small
from jaxdata.tokenizers import Tokenizer

_PROBE = (("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four"))


class ChatTemplate:
    """A Jinja template of conversations, run in a sandbox (see `sandbox`).

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

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        special: Iterable[str] = (),
        *,
        every_turn: bool = True,
    ) -> None:
        try:
            from jaxdata.converter.chat.sandbox import CLOSE, OPEN, Sandbox
        except ImportError as error:
            raise MissingExtra("chat", "jinja2") from error
        self._marks = OPEN, CLOSE
        self._variables, self._special = dict(variables), tuple(special)
        try:
            self._render = Sandbox().compiled(source)
        except Exception as error:  # the sandbox runs constant parts when it compiles
            raise InputError(f"the chat template cannot be compiled: {error}") from error
        probe = Conversation.of([(role, content, role == "assistant") for role, content in _PROBE])
        self._marked = OPEN in self._try_it(probe)
        self._check_turns(probe if every_turn else probe.last_only())

    def _try_it(self, probe: Conversation) -> str:
        try:
            return self._text(probe)
        except BadRecord as error:
            raise InputError(
                f"{error.reason}, even for two plain questions and answers. Give another "
                "template with --chat-template, or missing variables with --template-variables"
            ) from error

    def _check_turns(self, probe: Conversation) -> None:
        try:
            self.spans(probe)
        except BadRecord as error:
            raise InputError(
                f"{error.reason}: cannot determine which tokens belong to the assistant. Mark "
                "them in the template with {% generation %} … {% endgeneration %}, or train on the "
                "last answer of each conversation only, with --train-on last"
            ) from error

    def _text(self, conversation: Conversation, stop: int | None = None, ask: bool = False) -> str:
        """Write the first messages, and with `ask` the beginning of an answer."""
        variables = {
            **self._variables,
            **conversation.variables,
            "messages": conversation.messages[:stop],
            "add_generation_prompt": ask,
        }
        try:
            return self._render(variables)
        except Exception as error:  # a template can raise whatever Python can
            raise BadRecord(f"the chat template fails: {_first_line(error)}") from error

    def spans(self, conversation: Conversation) -> list[Span]:
        """Return spans with and without loss; raises BadRecord if the template fails."""
        marked = self._marked_spans if self._marked else self._turn_spans
        return [Span(text, loss, special=True) for text, loss in marked(conversation) if text]

    def _marked_spans(self, conversation: Conversation) -> Iterable[tuple[str, bool]]:
        opening, closing = self._marks
        before, *parts = self._text(conversation).split(opening)
        both = zip(conversation.messages, conversation.losses, strict=True)
        losses = [loss for message, loss in both if message["role"] == "assistant"]
        if len(losses) != len(parts) and not all(losses):
            raise BadRecord("weights of messages, and a template that marks something else")
        yield before, False
        for number, part in enumerate(parts):
            answer, closed, rest = part.partition(closing)
            if not closed:
                raise BadRecord("the chat template has a generation block inside another")
            yield answer, losses[number] if len(losses) == len(parts) else True
            yield rest.replace(closing, ""), False

    def _turn_spans(self, conversation: Conversation) -> Iterable[tuple[str, bool]]:
        whole, done = self._text(conversation), 0
        for number, loss in enumerate(conversation.losses):
            if loss:
                start, stop = self._turn(conversation, number, whole)
                yield whole[done:start], False
                yield whole[start:stop], True
                done = stop
        yield whole[done:], False

    def _turn(self, conversation: Conversation, number: int, whole: str) -> tuple[int, int]:
        """Where the answer that is message `number` begins and ends."""
        before = self._text(conversation, number, ask=True)
        after = self._text(conversation, number + 1)
        if not (whole.startswith(before) and whole.startswith(after) and len(before) < len(after)):
            raise BadRecord("the chat template does not write a conversation turn after turn")
        start = len(before)
        if before == self._text(conversation, number):  # it knows no prompt for an answer
            start = _content_start(whole, conversation.messages[number], start, len(after))
        return start, self._end(whole, start, len(after))

    def _end(self, whole: str, start: int, stop: int) -> int:
        """White space after a turn's last special token is not the assistant's."""
        answer = whole[start:stop].rstrip()
        return start + len(answer) if answer.endswith(self._special) else stop


def find_template(given: str | None, tokenizer: Tokenizer) -> str | None:
    """Return the template in a file, or the tokenizer's; None for "none", or if it has none.

    `given` may also be a template itself; None asks for the tokenizer's, if it has one.
    """
    if given == "none":
        return None
    if given in (None, "tokenizer"):
        if given and tokenizer.chat_template is None:
            raise InputError(
                f"tokenizer {tokenizer.name!r} has no chat template; give a Jinja file with "
                "--chat-template FILE, or --chat-template none to use prefixes"
            )
        return tokenizer.chat_template
    assert given is not None
    if "{%" in given or "{{" in given:
        return given
    try:
        return read_small(given).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--chat-template {given!r} cannot be read: {error}") from error


def _content_start(whole: str, message: Mapping[str, Any], start: int, stop: int) -> int:
    """Where a message's content is, with the one space before it, which its first token takes."""
    content = str(message.get("content") or "")
    places = (whole.find(text, start, stop) for text in (content, content.strip()) if text)
    found = next((place for place in places if place >= 0), start)
    return found - 1 if found > start and whole[found - 1] == " " else found


def _first_line(error: Exception) -> str:
    text = "" if isinstance(error, RecursionError | MemoryError) else str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
