# ruff: noqa: E501 - a template is a line
"""Templates of other people's making: what they may write, and what they may not do."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from jinja2 import Environment
from jinja2.exceptions import TemplateError

from jaxdata.base.errors import InputError
from jaxdata.converter.chat import formatting
from jaxdata.converter.chat.conversations import Conversation
from jaxdata.converter.chat.formatting import ChatTemplate
from jaxdata.converter.chat.sandbox import sandbox
from jaxdata.converter.inputs.parsing import BadRecord

OPEN, CLOSE = "\ufdd0", "\ufdd1"
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho", "n": 2}]


def render(source: str) -> str:
    return sandbox().from_string(source).render({"messages": MESSAGES})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}\n{%- if loop.last %}{{ loop.index0 ~ m.role }}{% endif %}\n{% endfor %}", "1assistant"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% break %}{% endfor %}", "x"),
        ("a\n  {% if 1 %}\nb\n  {% endif %}\n", "a\nb\n"),
        ("{{ messages[0] | tojson }}{{ 'é' | tojson }}", '{"role": "user", "content": "hi"}"é"'),
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1, separators=(',', ':'), sort_keys=true) }}", '{\n "a":[\n  2\n ],\n "b":1\n}'),
        ("{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}", "3"),
        ("{{ messages | selectattr('n', 'defined') | map(attribute='role') | join(', ') }}", "assistant"),
        ("{% macro f(a) %}[{{ a }}]{% endmacro %}{{ f(1) }}{{ messages[1:][0].content.split('h')[-1].strip() }}", "[1]o"),
        ("{% generation %}{{ 'a' }}{% endgeneration %}b", f"{OPEN}a{CLOSE}b"),
        ("{{ '{:>5}|{}'.format(1, 2 ** 3) }}{{ '%05.2f' % 1.5 }}{{ 'hi' in messages[0].content }}", "    1|801.50True"),
    ],
)  # fmt: skip
def test_what_chat_templates_write(source: str, text: str) -> None:
    assert render(source) == text


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ ('{0.__class__}'|attr('format'))(messages) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('touch was_run').read() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('touch was_run') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ open('/etc/passwd').read() }}",
    "{{ __import__('os').system('touch was_run') }}",
    "{% set messages.role = 1 %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_nothing_leads_out_of_the_sandbox(
    source: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    before = str(MESSAGES)
    try:
        written = render(source)
    except (TemplateError, TypeError):
        written = ""
    assert "<class" not in written
    assert "root:" not in written
    assert not os.listdir(".")  # noqa: PTH208
    assert str(MESSAGES) == before


LONG = "{% set b = 'x' * 4000000 %}"
NESTED = "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
DEEP = (
    "{% set ns = namespace(t=()) %}{% for i in range(99999) %}{% set ns.t = (ns.t,) %}{% endfor %}"
)
FOREVER = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
BOMBS = [
    # steps without end, of the template and inside a call
    FOREVER,
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ ([[1]] * 200000) | sum(start=[]) }}",
    LONG + "{% set c = b[:3999999] ~ 'y' %}{{ c in [b] * 99999 }}",
    NESTED + NESTED.replace("ns", "n2") + "{{ ns.x == n2.x }}",
    # memory, at once and little by little
    "{{ range(10 ** 9) | list }}",
    "{{ '{:{w}}'.format(1, w=10 ** 10) }}",
    LONG + "{% for i in range(99999) %}{{ b }}{% endfor %}",
    NESTED + "{{ ns.x | tojson }}",
    # calls in each other, and what the compiler has to take in
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    DEEP + "{{ {ns.t: 1} }}",
    "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "{{ 1 }}" * 20000,
]
WITH = "{% if messages[0].content == 'bomb' %}BOMB{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
"""A template that does what is in the place of BOMB where a conversation asks for it."""
FINE = [("hi", False), ("yes", True)]


def asking(text: str) -> Conversation:
    return Conversation.of([("user", text, False), ("assistant", "yes", True)])


def spans(template: ChatTemplate, text: str) -> list[tuple[object, bool]]:
    return [(span.content, span.loss) for span in template.spans(asking(text))]


def armed(bomb: str) -> ChatTemplate:
    return ChatTemplate(WITH.replace("BOMB", bomb), {})


def test_a_template_that_goes_on_is_ended_and_the_next_conversation_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formatting, "_SECONDS", 0.1)
    template = armed(FOREVER)
    with pytest.raises(BadRecord, match="the chat template was ended: it takes more than 4 s"):
        spans(template, "bomb")
    assert spans(template, "hi") == FINE


def test_a_template_that_needs_too_much_memory_is_refused_where_it_always_does() -> None:
    with pytest.raises(InputError, match="more than 1 GiB of memory, even for two plain questions"):
        ChatTemplate("{{ 'x' * (10 ** 10) }}" + WITH, {})


@pytest.mark.parametrize(
    ("bomb", "says"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ 'x' * (2 ** 24 + 1) }}", "it writes more than 16,777,216 characters"),
        ("{{ raise_exception('a\nb') }}", "a$"),
        ("{{ [1] | tojson(default=1) }}", "_tojson"),
    ],
)
def test_a_template_that_fails_costs_no_process(bomb: str, says: str) -> None:
    template = armed(bomb)
    process = template._worker
    for _ in range(4):  # more often than one may be ended
        with pytest.raises(BadRecord, match=f"^the chat template fails: .*{says}"):
            spans(template, "bomb")
    assert spans(template, "hi") == FINE
    assert template._worker is process is not None


def test_a_template_calls_what_jinja_has_and_nothing_of_ours() -> None:
    made, jinja = sandbox(), Environment()
    assert made.filters.keys() == jinja.filters.keys() - {"random"}
    assert made.tests.keys() == jinja.tests.keys()
    assert made.globals.keys() == jinja.globals.keys() - {"lipsum"} | {"raise_exception"}


def test_values_arrive_and_long_texts_come_back_as_they_are() -> None:
    odd = "a\u2028\x00\ud800\U0001f600\n" * 300_000
    messages = [
        {"role": "user", "content": odd, "n": 2**70, "at": date(2026, 1, 2)},
        {"role": "assistant", "content": "b"},
    ]
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{{ m.n }} {{ m.at }};{% endfor %}", {}
    )
    found = template.spans(Conversation(messages, [False, True]))
    assert "".join(str(span.content) for span in found) == f"{odd}{2**70} 2026-01-02;b ;"
    circular: dict[str, object] = {"role": "user", "content": "x"}
    circular["self"] = circular
    with pytest.raises(BadRecord, match="cannot be written as JSON"):
        template.spans(Conversation([circular], [True]))


def test_a_process_that_is_killed_or_was_forked_or_interrupted_is_begun_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert spans(template, "hi") == FINE
    monkeypatch.setattr(template._worker.connection, "recv_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spans(template, "other")
    assert spans(template, "hi") == FINE, "and no answer of before"


def test_the_process_ends_with_its_template() -> None:
    one = armed("")
    assert one._worker is not None
    pid = one._worker.pid
    del one
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_it_ends_with_its_parent_in_the_middle_of_a_rendering() -> None:
    code = (
        "import os, threading\n"
        "from jaxdata.converter.chat import formatting\n"
        "from tests.converter.chat.test_sandbox import FOREVER, armed, spans\n"
        "formatting._SECONDS = 1e6\n"
        "one = armed(FOREVER)\n"
        "threading.Thread(target=spans, args=(one, 'bomb'), daemon=True).start()\n"
        "while one._worker: pass\n"
        "os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=root)
    assert done.returncode == -signal.SIGKILL, done.stderr  # and all that had its outputs ended


@pytest.mark.exhaustive
@pytest.mark.parametrize("bomb", BOMBS, ids=range(len(BOMBS)))
def test_no_template_goes_on_or_grows_without_end(
    bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formatting, "_SECONDS", 0.1)
    template = ChatTemplate(WITH, {})
    template._start.args[1]["source"] = bomb
    template._worker.close()  # type: ignore[union-attr]
    template._worker = None
    given = {"messages": MESSAGES, "losses": [False, True], "variables": {}}
    answer = template._ask(json.dumps(given).encode())
    assert answer.keys() < {"compiled", "fails", "ended", "spans"}
    if template._worker is not None:
        status = Path(f"/proc/{template._worker.pid}/status").read_text()
        peak = int(status.split("VmPeak:")[1].split()[0])  # of memory, in kB
        assert peak < 2**20 + 2**16
