"""Conversations written by a chat template, and which characters are the assistant's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakValueDictionary

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
        self._template = _encoded(
            {"source": source, "special": list(special), "variables": dict(variables)}
        )
        self._process, self._ended = _TemplateProcess.shared(), 0
        probe = Conversation.of([(role, content, role == "assistant") for role, content in _PROBE])
        self._marked: bool = self._try_it(probe)
        self._check_turns(probe if every_turn else probe.last_only())

    def _try_it(self, probe: Conversation) -> bool:
        """Whether it marks answers."""
        try:
            marked: bool = self._answer(probe, None)["marked"]
        except BadRecord as error:
            raise InputError(
                f"{error.reason}, even for two plain questions and answers. Give another "
                "template with --chat-template, or missing variables with --template-variables"
            ) from error
        return marked

    def _check_turns(self, probe: Conversation) -> None:
        try:
            self.spans(probe)
        except BadRecord as error:
            raise InputError(
                f"{error.reason}: cannot determine which tokens belong to the assistant. Mark "
                "them in the template with {% generation %} … {% endgeneration %}, or train on the "
                "last answer of each conversation only, with --train-on last"
            ) from error

    def spans(self, conversation: Conversation) -> list[Span]:
        """Return spans with and without loss.

        Raises:
            BadRecord: the template fails, or its process was ended at a limit.
            InputError: that happened a few times; each costs seconds.
        """
        spans = self._answer(conversation, self._marked)["spans"]
        return [Span(text, loss, special=True) for text, loss in spans]

    def _answer(self, conversation: Conversation, marked: bool | None) -> dict[str, Any]:
        request = {
            "variables": conversation.variables,
            "messages": conversation.messages,
            "losses": conversation.losses,
            "marked": marked,
        }
        try:
            encoded = _encoded(request)
        except (TypeError, ValueError):  # a transform can put anything into a record
            raise BadRecord("messages or 'tools' cannot be written as JSON") from None
        answer = self._process.ask(self._template, encoded)
        if "compiled" in answer:
            raise InputError(f"the chat template cannot be compiled: {answer['compiled']}")
        if "fails" in answer:
            raise BadRecord(answer["fails"])
        if "ended" in answer:
            self._count_ended(answer["ended"])
        return answer

    def _count_ended(self, why: str) -> None:
        self._ended += 1
        reason = f"the chat template was ended: it {why}"
        if self._ended == _MOST_ENDED:
            raise InputError(
                f"{reason}. So it was at {_MOST_ENDED} conversations: give another template with "
                "--chat-template, or leave such conversations out"
            )
        raise BadRecord(reason)


class _TemplateProcess:
    """The process that runs this one's templates, from when it is needed until none is left."""

    _used: ClassVar[WeakValueDictionary[str, _TemplateProcess]] = WeakValueDictionary()

    @classmethod
    def shared(cls) -> _TemplateProcess:
        """The one of this process."""
        return cls._used.get("") or cls._used.setdefault("", cls())

    def __init__(self) -> None:
        self.forget()
        forget_in_forks(self)

    def forget(self) -> None:
        """See `forget_in_forks`."""
        self._worker: Worker | None = None
        self._lock = Lock()

    def __del__(self) -> None:
        if self._worker:
            self._worker.close()

    def ask(self, template: bytes, request: bytes) -> dict[str, Any]:
        """The answer to a request (see `sandbox.serve`); raises WorkerDied."""
        with self._lock:
            try:
                return self._ask(template, request)
            except WorkerDied:  # killed by somebody: by the kernel, say, that needs memory
                return self._ask(template, request)

    def _ask(self, template: bytes, request: bytes) -> dict[str, Any]:
        worker, self._worker = self._worker or Worker(_TARGET, _SECONDS), None
        try:
            worker.guarded(worker.connection.send_bytes, template + b"\n" + request)
            data = worker.guarded(worker.connection.recv_bytes, _LONGEST)
        except BaseException as error:  # an interrupt, say: its answer would be the next one's
            worker.close()
            if isinstance(error, WorkerDied) and worker.signal in _OWN_FAULT:
                return {"ended": _OWN_FAULT[worker.signal]}
            raise
        answer: dict[str, Any] = json.loads(data)
        if "ended" in answer:  # its memory is in pieces
            worker.close()
        else:
            self._worker = worker
        return answer


def _encoded(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, default=plain_value)
    return text.encode("utf-8", "surrogatepass")


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
