# ruff: noqa: E501 - a template is a line
"""Templates of other people's making: what they may write, and what they may not do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jinja2.exceptions import TemplateError

from jaxdata.converter.chat.sandbox import CLOSE, OPEN, Sandbox

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho", "n": 2}]


def render(source: str) -> str:
    return Sandbox().compiled(source)({"messages": MESSAGES})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for m in messages %}<{{ m.role }}>{{ m['content'] | upper }}{% endfor %}",
            "<user>HI<assistant>HO",
        ),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi"}'),
        (
            "{% for m in messages %}\n{%- if loop.last %}{{ loop.index0 ~ m.role }}{% endif %}\n{% endfor %}",
            "1assistant",
        ),
        (
            "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% break %}{% endfor %}",
            "x",
        ),
        (
            "{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns.a }}",
            "3",
        ),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ messages[1:][0].content.split('h')[-1].strip() }}", "o"),
        ("{% macro f(a) %}[{{ a }}]{% endmacro %}{{ f(1) }}{{ f('é') }}", "[1][é]"),
        ("{% generation %}{{ 'a' }}{% endgeneration %}b", f"{OPEN}a{CLOSE}b"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ 3 * 4 + 2 ** 3 }}{{ '-' * 3 }}{{ '%s!' % 'a' }}{{ 'é' | tojson }}", '20---a!"é"'),
        ("{% set x %}one{% endset %}{{ x | trim | replace('o', 'u') }}", "une"),
        ("{{ messages | selectattr('n', 'defined') | list | length }}", "1"),
        (
            "{{ messages | map(attribute='role') | first }}{{ 'x' if messages | map('upper') }}",
            "userx",
        ),
        (
            "{{ 1 < 2 < 3 }}{{ 'hi' in messages[0].content }}{{ 'n' not in messages[0] }}",
            "TrueTrueTrue",
        ),
        ("{{ messages[0] == messages[0] }}{{ messages[0].role in ['user', 'tool'] }}", "TrueTrue"),
        ("{{ '{:>5}|{}'.format(1, 20241122) }}{{ '%05.2f' % 1.5 }}", "    1|2024112201.50"),
        (
            "{{ {'a': [1, (2,)]} }}{{ 'abc'[::-1] }}{{ namespace(a=1) }}",
            "{'a': [1, (2,)]}cba<Namespace>",
        ),
        (
            "{{ ['a', 1] | join('-') }}{{ messages | join(',', attribute='role') }}",
            "a-1user,assistant",
        ),
        (
            "{{ {('a', 1): 2}[('a', 1)] }}{{ [3, 1] | sort }}{{ {'b': 1}.items() | list }}",
            "2[1, 3][('b', 1)]",
        ),
        ("{% for m in messages %}" + "-" * 99 + "{% endfor %}", "-" * 198),
        (
            "{{ 'a b'.split() }}{{ 'a\tb'.expandtabs(2) }}{{ 'a\nb' | indent(2) }}",
            "['a', 'b']a ba\n  b",
        ),
    ],
)
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
NESTED = (
    "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}"
)
BOMBS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ ['x'] * 10 ** 10 }}",
    "{% set ns = namespace(n=9) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ 'x'.center(10 ** 10) }}",
    "{{ 'x' | center(10 ** 10) }}",
    "{{ 'x' | indent(10 ** 10) }}",
    "{{ 'x'.zfill(10 ** 10) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10000000000, 1) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=10 ** 10) }}",
    "{{ [1] | batch(10 ** 10, 'x') | list }}",
    "{{ [1] | slice(10 ** 10) | list }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x | replace('b', ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] | join(ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}{% endfor %}",
    "{% set b = 'x' * 4000000 %}{% for i in range(99999) %}{{ b }}{% endfor %}",
    "{% set b = 'x' * 4000000 %}{% set y %}{% for i in range(99999) %}{{ b }}{% endfor %}{% endset %}",
    "{% macro f() %}{% for i in range(99999) %}"
    + "y" * 60_000
    + "{% endfor %}{% endmacro %}{{ f() }}",
    "{{ range(10 ** 9) | list }}",
    NESTED + "{{ ns.x | tojson }}",
    NESTED + "{{ ns.x }}",
    "{{ [1] | tojson(indent=10 ** 10) }}",
    "{{ [1, 2] | tojson(separators=('x' * 4000000, ':')) }}",
]


def test_nothing_goes_on_or_grows_without_end() -> None:
    code = (
        "import resource, sys, tests.converter.chat.test_sandbox as t\n"
        "from tests.converter.chat.bombs import GROWING\n"
        "held = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (held + 400 * 2**20,) * 2)\n"
        "for source in t.BOMBS + GROWING:\n"
        "    try: t.render(source)\n"
        "    except MemoryError: sys.exit(f'no memory left: {source[-200:]}')\n"
        "    except Exception: continue\n"
        "    sys.exit(f'it was allowed: {source[-200:]}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr


def test_the_allowance_is_enough_for_long_conversations() -> None:
    template = (
        "{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{{ m.content | trim | replace('a', 'b') }}"
        "{% if m.role == 'user' %}{{ '\\n' }}{% endif %}{% endfor %}"
    )
    many = [{"role": "user", "content": "word " * 300}] * 2_000
    assert len(Sandbox().compiled(template)({"messages": many})) > 2_900_000
    long = [{"role": "user", "content": "word " * 600_000}]
    assert len(Sandbox().compiled(template)({"messages": long})) > 2_900_000


def test_the_same_allowance_for_every_conversation() -> None:
    compiled = Sandbox().compiled("{% for i in range(90000) %}{{ i }}{% endfor %}")
    assert len({compiled({}) for _ in range(60)}) == 1
