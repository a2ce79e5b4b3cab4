"use strict";
(() => {
  document.documentElement.className = "labelled"; // where rows of tables become lists, cells say their columns
  for (const table of document.querySelectorAll("table")) {
    const names = [...table.tHead.rows[0].cells].map((each) => each.textContent);
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, at) => { if (cell.tagName === "TD") cell.dataset.label = names[at]; });
    }
  }
  const panel = document.getElementById("panel");
  const segments = [...document.querySelectorAll(".seg")];
  const line = (name, text, style) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (style) made.className = style;
    return made;
  };
  const show = (segment) => {
    const said = segment.dataset;
    const title = document.createElement("p");
    title.append(line("strong", said.label), " " + said.says);
    const parts = [title];
    if (said.origin) parts.push(line("p", "from " + said.origin, "note"));
    if (said.text !== undefined) parts.push(line("pre", said.text, "text"));
    panel.replaceChildren(...parts);
  };
  if (segments.length) show(segments[0]);
  const walk = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  segments.forEach((segment, at) => {
    segment.setAttribute("tabindex", at ? "-1" : "0");
    segment.addEventListener("mouseenter", () => show(segment));
    segment.addEventListener("focus", () => show(segment));
    segment.addEventListener("keydown", (event) => {
      const next = segments[at + (walk[event.key] || 0)];
      if (!(event.key in walk) || !next) return;
      event.preventDefault();
      segment.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  });
  const documents = [...document.querySelectorAll("#samples article")];
  const found = document.getElementById("found");
  const asked = document.getElementById("searching");
  asked.hidden = false;
  const choose = () => {
    const tags = [...asked.querySelectorAll("select")].map((each) => each.value).filter(Boolean);
    documents.forEach((each) => {
      const own = JSON.parse(each.dataset.tags);
      each.hidden = !tags.every((tag) => own.includes(tag));
    });
    const count = documents.filter((each) => !each.hidden).length;
    found.textContent = count + " of " + documents.length + " samples";
  };
  const boxes = [...asked.querySelectorAll("select")];
  boxes.forEach((each) => each.addEventListener("input", choose));
  const folds = [...document.querySelectorAll("details")];
  const samples = document.getElementById("samples");
  const key = "jaxdata report " + location.pathname;
  try { // a page that loads itself again stays as its reader left it
    const [how] = performance.getEntriesByType("navigation");
    const left = how.type === "reload" && JSON.parse(sessionStorage.getItem(key));
    if (left) {
      boxes.forEach((each, at) => { each.value = left.boxes[at]; });
      folds.forEach((each, at) => { each.open = left.folds[at]; });
      choose();
      samples.scrollTop = left.top;
    }
    addEventListener("pagehide", () => sessionStorage.setItem(key, JSON.stringify({
      boxes: boxes.map((each) => each.value), folds: folds.map((each) => each.open), top: samples.scrollTop,
    })));
  } catch { /* no storage: the page begins anew */ }
})();
