"""Conversations written by a chat template, and which characters are the assistant's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from jaxdata.base.errors import InputError, MissingExtra, WorkerDied
from jaxdata.base.processes import Worker, forget_in_forks
from jaxdata.converter.chat.conversations import Conversation
from jaxdata.converter.chat.families import FORMATS, named_template
from jaxdata.converter.inputs.parsing import BadRecord, plain_value
from jaxdata.converter.tasks.base import Span
from jaxdata.storage.small_files import read_small
from jaxdata.tokenizers import Tokenizer

_TARGET = "jaxdata.converter.chat.sandbox:serve"
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

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        special: Iterable[str] = (),
        *,
        every_turn: bool = True,
    ) -> None:
        if find_spec("jinja2") is None:
            raise MissingExtra("chat", "jinja2")
        given = {"source": source, "variables": dict(variables), "special": tuple(special)}
        self._start = partial(Worker, _TARGET, given, _SECONDS)
        self._ended = 0
        self.forget()
        forget_in_forks(self)
        probe = Conversation.of([(role, content, role == "assistant") for role, content in _PROBE])
        try:
            self.spans(probe if every_turn else probe.last_only())
        except BadRecord as error:
            raise InputError(
                f"{error.reason}, even for two plain questions and answers. Give another template "
                "with --chat-template, or missing variables with --template-variables; or tell "
                "which words are the assistant's: mark them in the template with {% generation %} "
                "… {% endgeneration %}, or train on the last answer of each conversation only, "
                "with --train-on last"
            ) from error

    def forget(self) -> None:
        """See `forget_in_forks`."""
        self._worker: Worker | None = None

    def __del__(self) -> None:
        if worker := getattr(self, "_worker", None):
            worker.close()

    def spans(self, conversation: Conversation) -> list[Span]:
        """Return spans with and without loss.

        Raises:
            BadRecord: the template fails, or its process was ended at a limit.
            InputError: that happened a few times; each costs seconds.
        """
        request = {
            "variables": conversation.variables,
            "messages": conversation.messages,
            "losses": conversation.losses,
        }
        try:
            text = json.dumps(request, ensure_ascii=False, default=plain_value)
        except (TypeError, ValueError):  # a transform can put anything into a record
            raise BadRecord("messages or 'tools' cannot be written as JSON") from None
        answer = self._ask(text.encode("utf-8", "surrogatepass"))
        if "compiled" in answer:
            raise InputError(f"the chat template cannot be compiled: {answer['compiled']}")
        if "fails" in answer:
            raise BadRecord(answer["fails"])
        if "ended" in answer:
            self._ended += 1
            reason = f"the chat template was ended: it {answer['ended']}"
            if self._ended == _MOST_ENDED:
                raise InputError(
                    f"{reason}. So it was at {_MOST_ENDED} conversations: give another template "
                    "with --chat-template, or leave such conversations out"
                )
            raise BadRecord(reason)
        return [Span(text, loss, special=True) for text, loss in answer["spans"]]

    def _ask(self, request: bytes, again: bool = True) -> dict[str, Any]:
        """The answer to a request (see `sandbox.serve`); raises WorkerDied."""
        worker, self._worker = self._worker or self._start(), None
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
        else:
            self._worker = worker
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
    if given in FORMATS:
        return named_template(given)
    if "{%" in given or "{{" in given:
        return given
    try:
        return read_small(given).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--chat-template {given!r} is none of {', '.join(FORMATS)}, and no file that can be "
            f"read: {error}"
        ) from error
