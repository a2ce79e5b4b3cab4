"""Where a chat template runs: Jinja's sandbox, in a process of its own whose time and memory end.

Jinja's sandbox keeps a template from reaching Python, but not from working without end. That the
kernel does: one rendering has a few seconds of CPU time, and the process has a limit of memory.
What comes in and goes out is JSON. This file imports nothing but Jinja, so the process starts fast.
"""

import json
import math
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_LONGEST = 2**24
_FAILS = "the chat template fails"
_NO_MEMORY = "needs more than 1 GiB of memory"
_MEMORY = 2**30
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # around {% generation %} blocks: code points that are no text


class Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: what is between is the assistant's."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (_OPEN, _CLOSE)]
        return [marks[0], *body, marks[1]]


def sandbox() -> ImmutableSandboxedEnvironment:
    """An environment as transformers makes it for chat templates, without chance and dates."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise
    del made.filters["random"], made.globals["lipsum"]
    return made


def serve(connection: Connection, given: Mapping[str, Any]) -> None:
    """Answer requests until the connection closes.

    A request is a conversation in JSON: "messages", their "losses", and "variables" beside those of
    all conversations. The answer has "spans", pairs of text and loss; or why there are none: the
    template is not "compiled", it "fails", or "ended" at a limit. `given` is the template: its
    "source", the "variables" of all conversations, the texts of "special" tokens, a tuple, and the
    "seconds" of CPU time that a rendering has, about.
    """
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, _MEMORY)
    template: Template | None = None
    while True:
        request = connection.recv_bytes()
        try:
            answer: dict[str, Any] = {}
            try:
                _limit_seconds(given["seconds"])
                template = template or sandbox().from_string(given["source"])
                written = _Written(template, given, json.loads(request))
                answer["spans"] = [span for span in written.spans() if span[0]]
            except MemoryError:
                raise
            except _NoSpans as error:
                answer["fails"] = str(error)
            except Exception as error:  # a template can raise what Python can, also when compiled
                said = _first_line(error)
                answer |= {"fails": f"{_FAILS}: {said}"} if template else {"compiled": said}
            data = json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")
        except MemoryError:
            data = json.dumps({"ended": _NO_MEMORY}).encode()
        connection.send_bytes(data)


class _NoSpans(Exception):
    """Why a conversation has none."""


class _Written:
    """A conversation, written by a template."""

    def __init__(self, template: Template, given: Mapping[str, Any], asked: dict[str, Any]) -> None:
        self._template, self._seconds = template, given["seconds"]
        self._special = given["special"]
        self._variables = given["variables"] | asked["variables"]
        self._messages, self._losses = asked["messages"], asked["losses"]
        self.whole = self._text(len(self._messages))
        if len(self.whole) > _LONGEST:
            raise _NoSpans(f"{_FAILS}: it writes more than {_LONGEST:,} characters")

    def _text(self, stop: int, ask: bool = False) -> str:
        """Write the first messages, and with `ask` the beginning of an answer."""
        given = {"messages": self._messages[:stop], "add_generation_prompt": ask}
        _limit_seconds(self._seconds)
        return self._template.render(self._variables | given)

    def spans(self) -> Iterator[tuple[str, bool]]:
        """Its texts, with and without loss: where `{% generation %}` blocks are, by these."""
        return self._marked_spans() if _OPEN in self.whole else self._turn_spans()

    def _marked_spans(self) -> Iterator[tuple[str, bool]]:
        before, *parts = self.whole.split(_OPEN)
        both = zip(self._messages, self._losses, strict=True)
        losses = [loss for message, loss in both if message["role"] == "assistant"]
        if len(losses) != len(parts):
            if not all(losses):
                raise _NoSpans("weights of messages, and a template that marks something else")
            losses = [True] * len(parts)
        yield before, False
        for loss, part in zip(losses, parts, strict=True):
            answer, closed, rest = part.partition(_CLOSE)
            if not closed:
                raise _NoSpans("the chat template has a generation block inside another")
            yield answer, loss
            yield rest.replace(_CLOSE, ""), False

    def _turn_spans(self) -> Iterator[tuple[str, bool]]:
        """An answer is what the conversation up to it adds to that before."""
        done = 0
        for number, loss in enumerate(self._losses):
            if loss:
                start, stop = self._turn(number)
                yield self.whole[done:start], False
                yield self.whole[start:stop], True
                done = stop
        yield self.whole[done:], False

    def _turn(self, number: int) -> tuple[int, int]:
        """Where the answer that is message `number` begins and ends."""
        whole, last = self.whole, number + 1 == len(self._messages)
        before = self._text(number, ask=True)
        after = whole if last else self._text(number + 1)
        if not (whole.startswith(before) and whole.startswith(after) and len(before) < len(after)):
            raise _NoSpans("the chat template does not write a conversation turn after turn")
        start, stop = len(before), len(after)
        if before == self._text(number):  # it knows no prompt for an answer
            content = str(self._messages[number].get("content") or "")
            start = self._content_start(content, start, stop)
        # White space after a turn's last special token is not the assistant's.
        answer = whole[start:stop].rstrip()
        return start, start + len(answer) if answer.endswith(self._special) else stop

    def _content_start(self, content: str, start: int, stop: int) -> int:
        """Where a message's content is, with the space before it, which its first token takes."""
        texts = (text for text in (content, content.strip()) if text)
        places = (self.whole.find(text, start, stop) for text in texts)
        found = next((place for place in places if place >= 0), start)
        return found - 1 if found > start and self.whole[found - 1] == " " else found


def _limit_seconds(seconds: float) -> None:
    """Limit the CPU time of this process from now on, which is counted in whole seconds."""
    _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds))


def _limit(what: int, soft: int) -> None:
    with suppress(ValueError, OSError):  # a system that lacks this limit
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (soft if hard < 0 else min(soft, hard), hard))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers does: readable in any script, no HTML escapes."""
    options = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # type: ignore[arg-type]


def _raise(message: Any) -> None:
    raise TemplateError(message if isinstance(message, str) else "an error without a text")


def _first_line(error: Exception) -> str:
    text = "" if isinstance(error, RecursionError) else str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
