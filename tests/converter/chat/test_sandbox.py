# ruff: noqa: E501 - a template is a line
"""Templates of other people's making: what they may write, and what they may not do."""

import gc
import os
import signal
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from jaxdata.base.errors import InputError
from jaxdata.converter.chat import formatting
from jaxdata.converter.chat.conversations import Conversation
from jaxdata.converter.chat.formatting import ChatTemplate
from jaxdata.converter.chat.sandbox import sandbox
from jaxdata.converter.inputs.parsing import BadRecord

Patch = pytest.MonkeyPatch
OPEN, CLOSE = "\ufdd0", "\ufdd1"
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho", "n": 2}]


def render(source: str) -> str:
    return sandbox().from_string(source).render({"messages": MESSAGES})


WRITTEN = {
    "{% for m in messages %}\n{%- if loop.last %}{{ loop.index0 ~ m.role }}{% endif %}\n{% endfor %}": "1assistant",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% break %}{% endfor %}": "x",
    "a\n  {% if 1 %}\nb\n  {% endif %}\n": "a\nb\n",
    "{{ messages[0] | tojson }}{{ 'é' | tojson }}": '{"role": "user", "content": "hi"}"é"',
    "{{ {'b': 1, 'a': [2]} | tojson(indent=1, separators=(',', ':'), sort_keys=true) }}": '{\n "a":[\n  2\n ],\n "b":1\n}',
    "{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}": "3",
    "{% generation %}{{ 'a' }}{% endgeneration %}b": f"{OPEN}a{CLOSE}b",
}


def test_what_chat_templates_write() -> None:
    for source, text in WRITTEN.items():
        assert render(source) == text


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ ('{0.__class__}'|attr('format'))(messages) }}",
    "{{ cycler.__init__.__globals__.os.popen('touch was_run').read() }}",
    "{% include '/etc/passwd' %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ open('/etc/passwd').read() }}",
    "{% set messages.role = 1 %}",
]


def test_nothing_leads_out_of_the_sandbox(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    before = str(MESSAGES)
    for source in ESCAPES:
        try:
            written = render(source)
        except (TemplateError, TypeError):
            written = ""
        assert "<class" not in written, source
        assert "root:" not in written, source
    assert not [*tmp_path.iterdir()]
    assert str(MESSAGES) == before


WITH = "{% if messages[0].content == 'bomb' %}BOMB{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
"""A template that does what is in the place of BOMB where a conversation asks for it."""
FINE = [("hi", False), ("yes", True)]


def spans(template: ChatTemplate, text: str) -> list[tuple[object, bool]]:
    turns = [("user", text, False), ("assistant", "yes", True)]
    return [(span.content, span.loss) for span in template.spans(Conversation.of(turns))]


def armed(bomb: str) -> ChatTemplate:
    return ChatTemplate(WITH.replace("BOMB", bomb), {})


def test_a_template_that_goes_on_or_grows_is_ended_and_others_go_on(monkeypatch: Patch) -> None:
    monkeypatch.setattr(formatting, "_SECONDS", 0.1)
    template = armed(
        "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    reason = "the chat template was ended: it takes more than 4 s"
    for _ in range(2):
        with pytest.raises(BadRecord, match=reason):
            spans(template, "bomb")
        assert spans(template, "hi") == FINE
    with pytest.raises(InputError, match=f"{reason}.*So it was at 3 conversations: give another"):
        spans(template, "bomb")
    with pytest.raises(InputError, match="more than 1 GiB of memory, even for two plain questions"):
        ChatTemplate("{{ 'x' * (10 ** 10) }}" + WITH, {})


def test_a_template_that_fails_costs_no_process() -> None:
    for bomb, says in {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
        "{{ 'x' * (2 ** 24 + 1) }}": "it writes more than 16,777,216 characters",
        "{{ raise_exception('a\nb') }}": "a$",
        "{{ [1] | tojson(default=1) }}": "_tojson",
    }.items():
        template = armed(bomb)
        process = template._worker
        for _ in range(4):  # more often than one may be ended
            with pytest.raises(BadRecord, match=f"^the chat template fails: .*{says}"):
                spans(template, "bomb")
        assert spans(template, "hi") == FINE
        assert template._worker is process is not None


def test_values_arrive_and_long_texts_come_back_as_they_are() -> None:
    odd = "a\u2028\x00\ud800\U0001f600\n" * 300_000
    first: dict[str, Any] = {"role": "user", "content": odd, "n": 2**70, "at": date(2026, 1, 2)}
    messages = [first, {"role": "assistant", "content": "b"}]
    each = "{{ m.content }}{{ m.n }} {{ m.at }};"
    template = ChatTemplate(f"{{% for m in messages %}}{each}{{% endfor %}}", {})
    found = template.spans(Conversation(messages, [False, True]))
    assert "".join(str(span.content) for span in found) == f"{odd}{2**70} 2026-01-02;b ;"
    circular: dict[str, object] = {"role": "user", "content": "x"}
    circular["self"] = circular
    with pytest.raises(BadRecord, match="cannot be written as JSON"):
        template.spans(Conversation([circular], [True]))


def test_a_process_killed_forked_or_interrupted_is_begun_again_and_ends(monkeypatch: Patch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    template = armed("")
    assert template._worker is not None
    os.kill(template._worker.pid, signal.SIGKILL)
    assert spans(template, "hi") == FINE
    if not (child := os.fork()):
        try:
            os._exit(spans(template, "hi") != FINE)
        finally:
            os._exit(2)
    assert (os.waitpid(child, 0)[1], spans(template, "hi")) == (0, FINE)
    monkeypatch.setattr(template._worker.connection, "recv_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spans(template, "other")
    assert spans(template, "hi") == FINE, "and no answer of before"
    monkeypatch.undo()
    pid = template._worker.pid
    del template
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
