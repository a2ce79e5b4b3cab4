"""The page in a real browser: nothing runs, nothing is fetched, everything can be read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from jaxdata.look.terminal import printable_lines
from tests.look.report.chromium import Page
from tests.look.report.conftest import HOSTILE, attacks

OVERLAPS = """(() => {
  const wrong = [];
  for (const chart of document.querySelectorAll("svg.chart")) {
    const texts = [...chart.querySelectorAll("text")].map((t) => [t, t.getBoundingClientRect()]);
    texts.forEach(([a, p], at) => texts.slice(at + 1).forEach(([b, q]) => {
      const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (x > 1 && y > 3) wrong.push(a.textContent + " | " + b.textContent);
    }));
  }
  return wrong;
})()"""


CUT = """[...document.querySelectorAll("svg, table, td, th, figure, pre, dl, select")]
  .filter((e) => e.getBoundingClientRect().width && getComputedStyle(e).display !== "none")
  .filter((e) => !e.closest("svg.batch svg") && e.getBoundingClientRect().right > innerWidth + 1)
  .map((e) => e.outerHTML.slice(0, 80))"""


def test_hostile_text_is_text(tab: Page, page: Path, asked: tuple[int, list[str]]) -> None:
    tab.open(page)
    shown = tab.run("[...document.querySelectorAll('article pre')].map((e) => e.textContent)")
    *texts, surrogates = attacks(asked[0])
    for text in texts:
        assert printable_lines(text) in shown
    assert "surrogate" in surrogates
    assert "lone \\ud800 surrogate" in tab.run("document.getElementById('left-out').textContent")
    assert max(map(len, shown)) < 4_000, "the document of 10 MB is cut"
    assert tab.run("document.title").endswith("jaxdata report")
    assert tab.run("document.querySelectorAll('img, iframe, base, object, link').length") == 0
    assert tab.run("document.scripts.length") == 1
    assert tab.run(f"document.body.textContent.includes({json.dumps(HOSTILE)})")


def test_nothing_is_fetched(tab: Page, page: Path, asked: tuple[int, list[str]]) -> None:
    asked[1].clear()
    tab.open(page)
    tab.run("document.querySelectorAll('.seg').forEach((e) => e.focus())")
    assert tab.requests == [page.as_uri()]
    assert not asked[1]
    assert not tab.messages, "the page breaks its own Content-Security-Policy, or fails"


def test_what_is_injected_runs_without_the_policy_only(
    tab: Page, page: Path, asked: tuple[int, list[str]], tmp_path: Path
) -> None:
    """The test above can fail: the page with an attack pasted in, with its policy and without."""
    attack = "".join(attacks(asked[0])[:3]) + "</body>"
    text = page.read_text().replace("</body>", attack)
    policy = text[text.index("<meta http-equiv") :].partition("\n")[0]
    for whole, owned in ((text, False), (text.replace(policy, ""), True)):
        (tmp_path / "injected.html").write_text(whole)
        asked[1].clear()
        tab.open(tmp_path / "injected.html")
        assert (tab.run("document.title") == "owned") == owned
        assert bool(asked[1]) == owned


def test_segments_are_read_with_the_keyboard(tab: Page, page: Path) -> None:
    tab.open(page)
    tab.run("document.querySelector('.seg').focus()")
    for _ in range(2):
        tab.press("ArrowRight", 39)
    wanted = tab.run("Object.assign({}, document.querySelectorAll('.seg')[2].dataset)")
    said = tab.run("document.getElementById('panel').textContent")
    assert wanted["label"] in said
    assert wanted["says"] in said
    assert wanted["text"] in said
    assert tab.run("document.activeElement.dataset.label") == wanted["label"]


def test_samples_are_searched(tab: Page, page: Path) -> None:
    tab.open(page)
    tab.run(
        "(() => { const box = document.getElementById('search'); box.value = 'THIN 5';"
        "box.dispatchEvent(new Event('input')); })()"
    )
    left = tab.run(
        "[...document.querySelectorAll('article')].filter((e) => !e.hidden)"
        ".map((e) => e.textContent)"
    )
    assert left
    assert all("thin" in each and "5" in each for each in left)
    assert tab.run("document.getElementById('found').textContent").startswith(f"{len(left)} of ")


def test_samples_are_chosen_by_source_and_by_length(tab: Page, page: Path) -> None:
    tab.open(page)
    tab.run(
        "(() => { const [source, length] = document.querySelectorAll('#searching select');"
        "for (const [box, name] of [[source, 'train/code'], [length, 'from 64 tokens']]) {"
        "box.value = [...box.options].find((e) => e.textContent === name).value;"
        "box.dispatchEvent(new Event('input')); } })()"
    )
    left = tab.run(
        "[...document.querySelectorAll('#samples article')].filter((e) => !e.hidden)"
        ".map((e) => e.querySelector('h3').textContent)"
    )
    assert left
    sizes = [int(re.findall(r"(\d+) tokens", each)[0]) for each in left]
    assert all(each.startswith("train/code:") for each in left)
    assert all(64 <= size < 256 for size in sizes)


def test_a_page_that_loads_itself_again_stays_as_it_was_left(tab: Page, page: Path) -> None:
    tab.open(page)
    box = "document.getElementById('search')"
    tab.run(f"{box}.value = 'thin 5'; {box}.dispatchEvent(new Event('input'))")
    tab.run("document.querySelector('details').open = true")
    said = tab.run("document.getElementById('found').textContent")
    tab.reload()
    assert tab.run(f"{box}.value") == "thin 5"
    assert tab.run("document.getElementById('found').textContent") == said
    assert tab.run("document.querySelector('details').open")
    tab.open(page)
    assert tab.run(f"{box}.value") == ""


def test_it_is_whole_without_scripts(tab: Page, page: Path) -> None:
    tab.open(page, script=False)
    tree = tab.call("Accessibility.getFullAXTree")["nodes"]
    names = {node["name"]["value"] for node in tree if node.get("name", {}).get("value")}
    assert {"The run", "Sources", "Packing", "Epochs", "Batch", "Documents", "Left out"} <= names
    roles = [node["role"]["value"] for node in tree if not node["ignored"]]
    assert "searchbox" not in roles, "what needs a script is shown without it"
    images = [n for n in tree if not n["ignored"] and n["role"]["value"] in ("image", "img")]
    assert images
    assert all(node["name"]["value"] for node in images)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1180])
def test_it_reads_everywhere(tab: Page, page: Path, tmp_path: Path, dark: bool, width: int) -> None:
    tab.open(page, dark=dark, width=width)
    assert tab.run("document.documentElement.scrollWidth") <= width, "the page is wider than it"
    assert tab.run(OVERLAPS) == []
    assert tab.run(CUT) == [], "what a reader cannot see without scrolling sideways"
    ground = tab.run("getComputedStyle(document.querySelector('section')).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 384) == dark
    fills = tab.run(
        "[...document.querySelectorAll('svg.chart text')].map((e) => getComputedStyle(e).fill)"
    )
    assert set(fills) <= set(
        tab.run(
            "['--ink', '--muted'].map((n) => { const e = "
            "document.body.appendChild(document.createElement('i')); e.style.color = `var(${n})`; "
            "return getComputedStyle(e).color; })"
        )
    )
    tab.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000
