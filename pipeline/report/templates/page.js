// Pages can be read without this script. It adds search, filters, sorting, larger pictures and a choice of colours.
"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const root = document.documentElement;
root.classList.add("js");

// Colours: the system's, light or dark. A browser that keeps nothing for pages from disk forgets the choice.
const THEMES = { "": "as the system", light: "light", dark: "dark" };
function keptTheme() {
  try { return localStorage.getItem("theme") || ""; } catch { return ""; }
}
function setTheme(theme) {
  if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  try { localStorage.setItem("theme", theme); } catch { /* not kept */ }
  all(".theme").forEach(button => { button.textContent = `Colours: ${THEMES[theme]}`; });
}
setTheme(keptTheme());

// Search: the index is a script, which is loaded when the search is first used.
function loadIndex(then) {
  if (window.SEARCH) return then();
  const script = document.createElement("script");
  script.src = `${document.body.dataset.folder}assets/search.js`;
  script.onload = then;
  document.head.append(script);
}
function showFound(input, list) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  list.hidden = !words.length;
  const hits = window.SEARCH.map(([kind, title, more, address]) => {
    const text = `${kind} ${title} ${more}`.toLowerCase();
    const rank = words.reduce((sum, word) => sum + (title.toLowerCase().includes(word) ? 0 : 1), 0);
    return words.every(word => text.includes(word)) ? { kind, title, more, address, rank } : null;
  }).filter(Boolean).sort((one, other) => one.rank - other.rank).slice(0, 30);
  list.replaceChildren(...hits.map(hit => {
    const item = document.createElement("li"), link = document.createElement("a"), small = document.createElement("small");
    link.href = document.body.dataset.folder + hit.address;
    small.textContent = `${hit.kind}: ${hit.more.slice(0, 70)}`;
    link.append(hit.title, small);
    item.append(link);
    return item;
  }));
  if (!hits.length) list.innerHTML = '<li class="none">nothing found; config keys are in the manual</li>';
}
function addSearch(box) {
  const input = box.querySelector("input"), list = box.querySelector("ul");
  input.addEventListener("input", () => loadIndex(() => showFound(input, list)));
  box.addEventListener("keydown", event => {
    const stops = [input, ...all("a", list)], at = stops.indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { stops[(at + step + stops.length) % stops.length].focus(); event.preventDefault(); }
    if (event.key === "Escape") { input.value = ""; list.hidden = true; input.focus(); }
    if (event.key === "Enter" && at === 0 && stops[1]) stops[1].click();
  });
  document.addEventListener("keydown", event => {
    if (event.key === "/" && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) { input.focus(); event.preventDefault(); }
  });
}

// Filter by verdict: everything of the page that has one, except for the filters.
function addFilter(tools) {
  tools.addEventListener("click", event => {
    const chosen = event.target.closest("button");
    if (!chosen) return;
    all("button", tools).forEach(button => button.setAttribute("aria-pressed", button === chosen));
    all("li[data-verdict]").forEach(item => { item.hidden = !!chosen.dataset.verdict && item.dataset.verdict !== chosen.dataset.verdict; });
    all("[data-filtered]").forEach(list => {
      const part = list.closest("section.of-study");
      if (part) part.hidden = !all("li[data-verdict]", list).some(item => !item.hidden);
    });
    if (chosen.dataset.verdict === "not run yet") all("details.not-run-yet").forEach(part => { part.open = true; });
  });
}

// Sorting: by what the cells of a column have as numbers, else by their text. Empty cells stay last.
function valueOf(row, at, key) {
  const cell = row.cells[at];
  const text = cell.dataset[key] ?? (key === "value" ? cell.textContent.trim() : "");
  return text === "" ? null : isNaN(text) ? text.toLowerCase() : Number(text);
}
function sortBy(table, at, key, descending) {
  const body = table.tBodies[0], sign = descending ? -1 : 1;
  const rows = [...body.rows].map(row => [valueOf(row, at, key), row]);
  rows.sort(([one], [other]) => {
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * (typeof one === typeof other ? (one < other ? -1 : one > other ? 1 : 0) : typeof one === "number" ? -1 : 1);
  });
  body.append(...rows.map(([, row]) => row));
  all("thead th", table).forEach((head, place) => {
    if (place === at) head.setAttribute("aria-sort", descending ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
  });
}
function addSorting(table) {
  all("thead th", table).forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sortBy(table, at, at && table.dataset.key || "value", head.getAttribute("aria-sort") !== "descending"));
  });
}
// The name of a row, without its links to runs and without the paper's name.
function nameOf(head) {
  const copy = head.cloneNode(true);
  all("small", copy).forEach(part => part.remove());
  return copy.textContent.trim().replace(/\s+/g, " ");
}
function listOf(table) {
  const list = document.createElement("table"), heads = all("thead th", table).map(head => head.innerText.split(/[\n\u00a0]/)[0].trim());
  list.className = "lines by-difference";
  const relative = "relative" in table.dataset, share = relative ? "<th>Of the paper's</th>" : "";
  list.innerHTML = `<thead><tr><th>Row</th><th>Column</th><th>Ours</th><th>Paper</th><th>Difference</th>${share}</tr></thead><tbody></tbody>`;
  all("td[data-difference]", table).forEach(cell => {
    const row = list.tBodies[0].insertRow(), link = cell.querySelector(".cell").cloneNode(), badge = cell.querySelector(".badge");
    link.textContent = cell.querySelector(".ours").textContent;
    const name = document.createElement("th");
    name.textContent = nameOf(cell.parentElement.cells[0]);
    row.append(name);
    row.insertCell().textContent = heads[cell.cellIndex];
    row.insertCell().append(link);
    row.insertCell().textContent = cell.dataset.paper;
    row.insertCell().append(cell.querySelector(".difference").firstChild.textContent, badge ? badge.cloneNode(true) : "");
    ["ours", "paper", "difference"].forEach((key, at) => { row.cells[at + 2].dataset.value = cell.dataset[key]; });
    const distance = cell.dataset.distance;
    if (relative) row.insertCell().textContent = distance ? `${Number((100 * distance).toPrecision(3))} %` : "";
    if (relative && distance) row.cells[5].dataset.value = distance;
    if (distance) row.cells[4].dataset.distance = distance;
  });
  addSorting(list);
  sortBy(list, 4, "distance", true); // the order in which the page says what is furthest
  return list;
}
function addTableTools(tools) {
  const part = tools.closest(".table"), table = part.querySelector(".numbers-table");
  let list = null;
  table.dataset.key = "ours";
  function show(asList) {
    if (asList) table.after(list = list || listOf(table)); else if (list) list.remove();
    table.hidden = asList;
    all("button", tools).forEach(button => {
      button.setAttribute("aria-pressed", "list" in button.dataset ? asList : !asList && button.dataset.key === table.dataset.key);
    });
  }
  tools.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    if ("list" in button.dataset) return show(!table.hidden);
    table.dataset.key = button.dataset.key;
    show(false);
    const heads = all("thead th", table), sorted = heads.findIndex(head => head.hasAttribute("aria-sort"));
    const at = Math.max(1, sorted); // a button that changes nothing in sight would seem broken
    sortBy(table, at, table.dataset.key, heads[at].getAttribute("aria-sort") !== "ascending");
  });
}

// Larger pictures, and from one to the next with the arrow keys.
function addPictures(dialog) {
  const links = all("a.zoom"), image = dialog.querySelector("img"), text = dialog.querySelector("p");
  let at = 0;
  function show(place) {
    at = (place + links.length) % links.length;
    const small = links[at].querySelector("img"), width = Number(small.getAttribute("width"));
    image.src = links[at].href;
    image.alt = text.textContent = small.alt;
    image.classList.toggle("pixels", width < 160);
    image.style.width = `${Math.max(width, Math.min(0.85 * innerWidth, width < 160 ? 12 * width : 2 * width))}px`;
    if (!dialog.open) { dialog.showModal(); dialog.focus(); }
    dialog.scrollTo(0, 0);
  }
  links.forEach((link, place) => link.addEventListener("click", event => { event.preventDefault(); show(place); }));
  dialog.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) { show(at + step); event.preventDefault(); }
  });
  dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
}

// A link to something inside a folded part unfolds it.
function unfoldTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
}
// Frames that are wider than the page show that they go on.
function markFrames() {
  all(".scroll").forEach(part => part.classList.toggle("goes-on", part.scrollLeft + part.clientWidth < part.scrollWidth - 2));
}

addEventListener("DOMContentLoaded", () => {
  setTheme(keptTheme());
  all(".theme").forEach(button => button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    setTheme(names[(names.indexOf(keptTheme()) + 1) % names.length]);
  }));
  all(".menu").forEach(button => button.addEventListener("click", () => {
    button.setAttribute("aria-expanded", button.closest(".side").classList.toggle("open"));
  }));
  all(".search").forEach(addSearch);
  all(".filter").forEach(addFilter);
  all("table.numbers-table, table.sortable").forEach(addSorting);
  all(".table-head .tools").forEach(addTableTools);
  all("dialog.larger").forEach(addPictures);
  all("[data-caption]").forEach(caption => ["mouseover", "focusin"].forEach(kind => caption.parentElement.addEventListener(kind, event => {
    const mark = event.target.closest("a.mark, a.point");
    if (mark) caption.textContent = mark.getAttribute("aria-label");
  })));
  unfoldTarget();
  markFrames();
  all(".scroll").forEach(part => part.addEventListener("scroll", markFrames, { passive: true }));
});
addEventListener("hashchange", unfoldTarget);
addEventListener("resize", markFrames);
addEventListener("toggle", markFrames, true);
