"""The page in a real browser: nothing runs, nothing is fetched, everything can be read."""

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from jaxdata.look.terminal import printable_lines
from tests.look.report.conftest import HOSTILE, attacks

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = "--headless --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions "
OPTIONS += "--allow-file-access-from-files --virtual-time-budget=5000 --window-size=1300,1000"
FRAME = """<body><iframe src="{page}" width="{width}" height="900" {sandbox}></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = async () => {{
  frame.onload = null;
  const window = frame.contentWindow, document = window.document;
  const all = (chosen) => [...document.querySelectorAll(chosen)];
  let found;
  try {{ found = await (async () => {{ {code} }})(); }} catch (error) {{ found = String(error); }}
  parent.document.body.textContent = JSON.stringify({{found}});
}};
</script></body>"""


def seen(
    page: Path, code: str, *, width: int = 1180, dark: bool = False, script: bool = True
) -> Any:
    """What JavaScript returns that looks at a page in a headless browser; skips without one."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser to look with: none of {', '.join(NAMES)} is installed")
    sandbox = "" if script else 'sandbox="allow-same-origin"'
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(page=page.name, width=width, sandbox=sandbox, code=code))
    scheme = f"--blink-settings=preferredColorScheme={int(not dark)}"
    command = [program, *OPTIONS.split(), "--no-sandbox", "--dump-dom", scheme]
    with tempfile.TemporaryDirectory() as own:  # its sockets want short paths
        command += [f"--user-data-dir={own}/profile", frame.as_uri()]
        environment = {**os.environ, "TMPDIR": own}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(html.unescape(re.sub(r"<[^>]*>", "", done.stdout)))["found"]


def test_hostile_text_is_text_and_nothing_is_fetched(page: Path) -> None:
    found = seen(
        page,
        """all(".seg").forEach((e) => e.focus());
        return {shown: all("article pre").map((e) => e.textContent), title: document.title,
          strange: all("img, iframe, base, object, link").length, scripts: document.scripts.length,
          text: document.body.textContent,
          requests: window.performance.getEntriesByType("resource").length};""",
    )
    assert {*map(printable_lines, attacks())} <= {*found["shown"]}
    assert max(map(len, found["shown"])) < 4_000, "the document of 10 MB is cut"
    assert found["title"].endswith("jaxdata report")
    assert (found["strange"], found["scripts"], found["requests"]) == (0, 1, 0)
    assert HOSTILE in found["text"]


def test_what_is_injected_runs_without_the_policy_only(page: Path, tmp_path: Path) -> None:
    """The test above can fail: the page with an attack pasted in, with its policy and without."""
    text = page.read_text().replace("</body>", "".join(attacks()[:3]) + "</body>")
    policy = text[text.index("<meta http-equiv") :].partition("\n")[0]
    for whole, owned in ((text, False), (text.replace(policy, ""), True)):
        (tmp_path / "injected.html").write_text(whole)
        assert (seen(tmp_path / "injected.html", "return document.title") == "owned") == owned


def test_segments_are_read_with_the_keyboard_and_samples_are_chosen(page: Path) -> None:
    """And a page that loads itself again stays as it was left."""
    found = seen(
        page,
        """all(".seg")[0].focus();
        for (let times = 0; times < 2; times++)
          document.activeElement.dispatchEvent(
            new window.KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
        const said = document.getElementById("panel").textContent;
        const third = Object.assign({}, all(".seg")[2].dataset);
        const choose = (box, value) => {
          box.value = value;
          box.dispatchEvent(new window.Event("input"));
        };
        const shown = () => all("#samples article").filter((e) => !e.hidden);
        const [source, length] = all("#searching select");
        for (const [box, name] of [[source, "train/code"], [length, "from 64 tokens"]])
          choose(box, [...box.options].find((e) => e.textContent === name).value);
        const chosen = shown().map((e) => e.querySelector("h3").textContent);
        document.querySelector("details").open = true;
        await new Promise((done) => { frame.onload = done; window.location.reload(); });
        const again = frame.contentWindow.document;
        return {said, third, chosen, found: again.getElementById("found").textContent,
          open: again.querySelector("details").open};""",
    )
    assert all(found["third"][name] in found["said"] for name in ("label", "says", "text"))
    sizes = [int(re.findall(r"(\d+) tokens", each)[0]) for each in found["chosen"]]
    assert sizes
    assert all(64 <= size < 256 for size in sizes)
    assert all(each.startswith("train/code:") for each in found["chosen"])
    assert found["found"].startswith(f"{len(found['chosen'])} of ")
    assert found["open"]


def test_it_is_whole_without_scripts(page: Path) -> None:
    found = seen(
        page,
        """return {parts: all("h2").map((e) => e.textContent),
          links: all("nav a").map((e) => e.textContent),
          choices: document.getElementById("searching").getBoundingClientRect().width};""",
        script=False,
    )
    parts = {"The run", "Sources", "Packing", "Epochs", "Batch", "Documents", "Left out"}
    assert parts <= {*found["parts"]}
    assert found["links"] == found["parts"]
    assert found["choices"] == 0, "what needs a script is shown without it"


@pytest.mark.parametrize(("dark", "width"), [(False, 390), (True, 1180)])
def test_it_reads_everywhere(page: Path, dark: bool, width: int) -> None:
    found = seen(
        page,
        """const overlaps = [], box = (e) => e.getBoundingClientRect();
        for (const chart of all("svg.chart")) {
          const texts = [...chart.querySelectorAll("text")].map((t) => [t, box(t)]);
          texts.forEach(([a, p], at) => texts.slice(at + 1).forEach(([b, q]) => {
            const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
            const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
            if (x > 1 && y > 3) overlaps.push(a.textContent + " | " + b.textContent);
          }));
        }
        const cut = all("svg, table, td, th, figure, pre, dl, select")
          .filter((e) => box(e).width && window.getComputedStyle(e).display !== "none")
          .filter((e) => !e.closest("svg.batch svg") && box(e).right > window.innerWidth + 1)
          .map((e) => e.outerHTML.slice(0, 80));
        return {overlaps, cut, wide: document.documentElement.scrollWidth,
          ground: window.getComputedStyle(all("section")[0]).backgroundColor};""",
        dark=dark,
        width=width,
    )
    assert found["wide"] <= width, "the page is wider than the window"
    assert found["overlaps"] == []
    assert found["cut"] == [], "what a reader cannot see without scrolling sideways"
    assert (sum(map(int, found["ground"][4:-1].split(","))) < 384) == dark


@pytest.mark.parametrize("script", [True, False])
def test_columns_have_their_names_on_a_phone(page: Path, script: bool) -> None:
    """Beside each cell, or, without scripts, above the rows."""
    found = seen(
        page,
        """const shown = (e) => window.getComputedStyle(e).display !== "none";
        const row = document.querySelector("#packing tbody tr");
        return {heads: all("#packing thead th").filter((e) => shown(e.closest("thead"))).length,
          names: all("#packing thead th").slice(1).map((e) => e.textContent),
          labels: [...row.querySelectorAll("td")].map((e) => e.dataset.label),
          said: [...row.children].map((e) => window.getComputedStyle(e, "::before").content)};""",
        width=390,
        script=script,
    )
    assert "padding %" in found["names"]
    if script:
        assert (found["heads"], found["labels"]) == (0, found["names"])
        assert found["said"] == ["none", *(f'"{name}"' for name in found["names"])]
    else:
        assert found["heads"] == 1 + len(found["names"])
