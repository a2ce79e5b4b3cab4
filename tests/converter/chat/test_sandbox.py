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
    "{{ messages.__class__ }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ ''|attr('__class__')|attr('__mro__') }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ ('{0.__class__}'|attr('format'))(messages) }}",
    "{{ '%s' | format(messages.__class__) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__['os'].system('touch was_run') }}",
    "{{ cycler.__init__.__globals__.os.popen('touch was_run').read() }}",
    "{{ lipsum.__globals__['os'].system('touch was_run') }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.system('touch was_run') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ messages[0].pop('role') }}",
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


ROOT = Path(__file__).parents[3]
NESTED = "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
OTHER = NESTED.replace("ns", "n2")
DEEP = (
    "{% set ns = namespace(t=()) %}{% for i in range(99999) %}{% set ns.t = (ns.t,) %}{% endfor %}"
)
DOUBLED = (
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = DOUBLE %}{% endfor %}"
)
LONG = "{% set b = 'x' * 4000000 %}"
KEPT = "{% set ns = namespace(k=[]) %}{% for i in range(99999) %}{% set ns.k = [ns.k, KEEP] %}{% endfor %}"
BOMBS = [
    # steps without end, of the template and inside a call
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ '" + "f" * 4000 + "' | int(base=16) }}",
    "{{ ([[1]] * 200000) | sum(start=[]) }}",
    LONG + "{% set c = b[:3999999] ~ 'y' %}{{ c in [b] * 99999 }}",
    LONG + "{% for i in range(99999) %}{% set _ = b.count('zz') %}{% endfor %}",
    "{% set m = ['a'] * 200000 %}{% for i in range(99999) %}{% set _ = m | sort %}{% endfor %}",
    NESTED + OTHER + "{{ ns.x == n2.x }}",
    NESTED + OTHER + "{{ [n2.x, ns.x] | sort }}",
    NESTED.replace("['a']", "('a',)").replace("[ns.x, ns.x]", "(ns.x, ns.x)") + "{{ {ns.x: 1} }}",
    # memory, at once and little by little
    "{{ 'x' * 10 ** 10 }}",
    "{{ range(10 ** 9) | list }}",
    "{{ 'x'.center(10 ** 10) }}",
    "{{ 'x' | indent(10 ** 10) }}",
    "{{ '%*d' % (10000000000, 1) }}",
    "{{ '{:{w}}'.format(1, w=10 ** 10) }}",
    "{{ ('\t' * 4000000).expandtabs(9999) }}",
    "{{ [1, 2] | tojson(separators=('x' * 4000000, ':')) }}",
    LONG + "{{ range(99999) | join(b) }}",
    LONG + "{% for i in range(99999) %}{{ b }}{% endfor %}",
    LONG + "{% set y %}{% for i in range(99999) %}{{ b }}{% endfor %}{% endset %}",
    DOUBLED.replace("DOUBLE", "ns.x ~ ns.x"),
    DOUBLED.replace("DOUBLE", "ns.x | replace('b', ns.x)"),
    NESTED + "{{ ns.x }}",
    NESTED + "{{ ns.x | tojson }}",
    KEPT.replace("KEEP", "'x' * 4000000"),
    KEPT.replace("KEEP", "range(99999) | list"),
    # calls in each other, and what the compiler has to take in
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
    DEEP + "{{ {ns.t: 1} }}",
    DEEP + "{{ ns.t }}",
    "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "{{ 1" + "|abs" * 20000 + " }}",
    "{% if x %}" * 5000 + "{% endif %}" * 5000,
    "{{ 1 }}" * 20000,
    "{#" * 60000,
    "{{ '" + "\\'" * 60000,
]


WITH = "{% if messages[0].content == 'bomb' %}BOMB{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
"""A template that does what is in the place of BOMB where a conversation asks for it."""


def asking(text: str) -> Conversation:
    return Conversation.of([("user", text, False), ("assistant", "yes", True)])


def spans(template: ChatTemplate, text: str) -> list[tuple[object, bool]]:
    return [(span.content, span.loss) for span in template.spans(asking(text))]


def armed(bomb: str) -> ChatTemplate:
    return ChatTemplate(WITH.replace("BOMB", bomb), {})


FINE = [("hi", False), ("yes", True)]


def test_a_template_that_goes_on_is_ended_and_the_next_conversation_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formatting, "_SECONDS", 0.1)
    template = armed(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(BadRecord, match="the chat template was ended: it takes more than 4 s"):
        spans(template, "bomb")
    assert spans(template, "hi") == FINE


def test_a_template_that_needs_too_much_memory_is_refused_after_a_few_conversations() -> None:
    bomb = "{{ 'x' * (10 ** 10) }}"
    template, reason = armed(bomb), "the chat template was ended: it needs more than 1 GiB of mem"
    for _ in range(2):
        with pytest.raises(BadRecord, match=f"^{reason}"):
            spans(template, "bomb")
        assert spans(template, "hi") == FINE
    with pytest.raises(InputError, match=f"^{reason}.* at 3 conv.*give another template with --"):
        spans(template, "bomb")
    with pytest.raises(InputError, match="more than 1 GiB of memory, even for two plain questions"):
        ChatTemplate(bomb + WITH, {})


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
    with pytest.raises(InputError, match="cannot be compiled: No filter named '_turns'"):
        ChatTemplate("{% set _ = [1] | _turns(-10 ** 15, 0, 0) %}", {})


def test_values_arrive_and_texts_come_back_as_they_are() -> None:
    odd = "a\u2028\x00\ud800\U0001f600\n"
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


def test_a_process_that_somebody_kills_is_begun_again() -> None:
    template = armed("")
    worker = template._worker
    assert worker is not None
    os.kill(worker.pid, signal.SIGKILL)
    assert spans(template, "hi") == FINE


def test_an_interrupt_leaves_no_answer_for_the_next_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    template = armed("")
    assert template._worker is not None
    monkeypatch.setattr(template._worker.connection, "recv_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        spans(template, "other")
    assert spans(template, "hi") == FINE


def test_a_forked_copy_has_a_process_of_its_own() -> None:
    template = armed("")
    child = os.fork()
    if not child:
        try:
            os._exit(spans(template, "hi") != FINE)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert spans(template, "hi") == FINE


def test_the_process_ends_with_its_template() -> None:
    one = armed("")
    worker = one._worker
    assert worker is not None
    del one
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


def test_it_ends_with_its_parent_in_the_middle_of_a_rendering() -> None:
    code = (
        "import os, threading\n"
        "from jaxdata.converter.chat import formatting\n"
        "from tests.converter.chat.test_sandbox import armed, spans\n"
        "formatting._SECONDS = 1e6\n"
        "one = armed('{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}')\n"
        "threading.Thread(target=spans, args=(one, 'bomb'), daemon=True).start()\n"
        "while one._worker: pass\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=ROOT)
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
    assert template._worker is None or _memory(template._worker.pid) < 2**20 + 2**16


def _memory(pid: int) -> int:
    """The kB of memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmPeak:")[1].split()[0])


def test_long_conversations_are_written() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{{ m.content | trim | replace('a', 'b') }}"
        "{% if m.role == 'user' %}{{ '\\n' }}{% endif %}{% endfor %}",
        {},
    )
    long = Conversation.of([("user", "word " * 600_000, False), ("assistant", "yes", True)])
    assert len(str(template.spans(long)[0].content)) > 2_900_000
