"use strict";
// Everything shown goes through text nodes: no text of an entry, an answer or a judge is ever read as HTML.
const DATA = JSON.parse(document.getElementById("data").textContent);
const GLYPH = { fails: "✗", passes: "✓", echo: "◐", no_echo: "○", unscored: "?" };
const MOST_LISTED = 500;
const FILTERS = ["type", "model", "structure", "outcome", "text"];
const form = document.getElementById("filters");
const list = document.getElementById("list");
const page = document.getElementById("entry");
let pinned = null; // the memory that stays marked
let chosen = null; // arms that the reader chose to see

function make(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== ""));
  return made;
}

// A text of unknown language, so that fonts and reading aloud fit it as far as its script tells.
function said(tag, text, properties) {
  const lang = /[\u3040-\u30ff]/.test(text) ? "ja" : /[^\u0000-\u024f\u2000-\u206f]{4}/.test(text) ? "" : "en";
  // Browsers take minutes to break one word of 10,000 letters into lines, unless they are told where.
  return make(tag, { ...properties, lang, dir: "auto" }, text.split(/(\S{200})/u).filter(Boolean).flatMap((piece) => [piece, make("wbr")]).slice(0, -1));
}

// --- state: all of it is in the address, so that every view can be linked to ---

const state = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
function address(changes) {
  const wanted = Object.entries({ ...state(), ...changes }).filter(([, value]) => value);
  return "#" + new URLSearchParams(wanted);
}

function search(entry) {
  if (entry.words === undefined) {
    const texts = [entry.id, entry.query || "", ...entry.memories];
    for (const arm of entry.arms)
      for (const answer of arm.answers) texts.push(answer.response || "", answer.judge_reasoning, answer.model_reasoning);
    entry.words = texts.join("\n").toLocaleLowerCase();
  }
  return entry.words;
}

// The arms of an entry that fit model, structure and outcome; "differ": those whose outcomes are not all the same.
function fitting(entry, wanted) {
  const there = entry.arms.filter(({ arm }) => {
    const { model, name } = DATA.arms[arm];
    return (!wanted.model || model === wanted.model) && (!wanted.structure || name === wanted.structure);
  });
  if (wanted.outcome !== "differ") return there.filter((arm) => !wanted.outcome || arm.outcome === wanted.outcome);
  const scored = there.filter((arm) => arm.outcome !== "unscored");
  return new Set(scored.map((arm) => arm.outcome)).size > 1 ? scored : [];
}

function matching(wanted) {
  const text = (wanted.text || "").toLocaleLowerCase();
  return DATA.entries.filter(
    (entry) =>
      (!wanted.type || entry.type === wanted.type) && fitting(entry, wanted).length && (!text || search(entry).includes(text)),
  );
}

// --- the list ---

function outcomeWords(outcome) {
  return `${GLYPH[outcome]}\u00a0${DATA.outcomes[outcome]}`;
}

function outcomeCell(arms, name) {
  const counts = {};
  for (const arm of arms) counts[arm.outcome] = (counts[arm.outcome] || 0) + 1;
  const words = Object.keys(GLYPH)
    .filter((outcome) => counts[outcome])
    .map((outcome) => make("span", { class: outcome }, outcomeWords(outcome) + (counts[outcome] > 1 ? ` ×${counts[outcome]}` : "")));
  return make("td", { class: words.length ? "outcome" : "none", data: { name } }, words.length ? words : "–");
}

function showList(found, wanted) {
  const listed = found.slice(0, MOST_LISTED), armsOf = new Map(listed.map((entry) => [entry, fitting(entry, { ...wanted, outcome: "" })]));
  const there = new Set([...armsOf.values()].flat().map((arm) => DATA.arms[arm.arm].name));
  const names = [...new Set(DATA.arms.map((arm) => arm.name))].filter((name) => there.has(name));
  const rows = listed.map((entry) => {
    const arms = armsOf.get(entry), [, kind, rest] = /^(.*-)?(.*)$/s.exec(entry.id);
    return make(
      "tr", {},
      make("th", { class: "id", scope: "row" }, make("a", { href: address({ entry: entry.id }), class: "mono" }, kind || "", make("wbr"), rest)),
      make("td", { class: "query" }, entry.query === null ? make("em", { class: "soft" }, "no entry of this id was given") : said("span", entry.query.slice(0, 400), { class: "clip" })),
      names.map((name) => outcomeCell(arms.filter((arm) => DATA.arms[arm.arm].name === name), name)),
    );
  });
  const head = make("tr", {}, ["Entry", "Query", ...names].map((name) => make("th", { scope: "col" }, name)));
  const notes = [
    rows.some((row) => row.querySelector(".none")) ? "–: not asked." : "",
    rows.some((row) => row.textContent.includes("×")) ? "×2: under two models, defences or other settings." : "",
  ];
  list.replaceChildren(
    make("p", { class: "soft" }, notes.join(" ")),
    rows.length
      ? make("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Entries" }, make("table", {}, make("thead", {}, head), make("tbody", {}, rows)))
      : make("p", {}, "No entry fits. “Show all” takes every filter away."),
    found.length > MOST_LISTED ? make("p", {}, `The first ${MOST_LISTED} are listed; filters find the others.`) : "",
  );
}

// --- one entry ---

function memoryItem(entry, place, more, focusable) {
  const button = make("button", { type: "button", "aria-pressed": "false", "aria-label": `Mark memory ${place + 1}`, tabIndex: focusable ? 0 : -1 }, String(place + 1));
  return make("li", { class: "memory", data: { memory: place } }, button, said("span", entry.memories[place]), more || []);
}

// Where each memory stands in a layout: its rank among the memories that `common` holds, and its headings.
function places(layout, common) {
  const found = new Map();
  for (const [path, members] of layout.groups)
    for (const member of members) if (!common || common.has(member)) found.set(member, { rank: found.size, path: path.join(" / ") });
  return found;
}

function differences(layout, base) {
  const there = places(layout), before = places(base);
  const common = new Set([...there.keys()].filter((member) => before.has(member)));
  const now = places(layout, common), then = places(base, common), found = new Map();
  for (const member of common) {
    const up = then.get(member).rank - now.get(member).rank;
    const was = then.get(member).path !== now.get(member).path ? then.get(member).path : null;
    found.set(member, { up, was });
  }
  return { found, common, added: [...there.keys()].filter((m) => !before.has(m)), dropped: [...before.keys()].filter((m) => !there.has(m)) };
}

function move(up) {
  const words = `${Math.abs(up)} ${up > 0 ? "earlier" : "later"}`;
  return up ? make("span", { class: "move", title: words, role: "img", "aria-label": words }, `${up > 0 ? "▲" : "▼"}${Math.abs(up)}`) : null;
}

function summary(change, layout, base, baseName) {
  const moved = [...change.found.values()].filter((one) => one.up).length;
  const other = [...change.found.values()].filter((one) => one.was).length;
  const known = new Set(base.groups.map(([path]) => path.join(" / ")));
  const fresh = layout.groups.filter(([path]) => path.length && !known.has(path.join(" / "))).length;
  const words = [
    fresh ? `${fresh} new heading${fresh > 1 ? "s" : ""}` : "",
    moved ? `${moved} of ${change.common.size} memories in another place` : "same order",
    other && layout.groups.some(([path]) => path.length) ? `${other} under another heading` : "",
    known.size > 1 && layout.groups.every(([path]) => !path.length) ? "without headings" : "",
    change.dropped.length ? `${change.dropped.length} dropped` : "",
    change.added.length ? `${change.added.length} added` : "",
  ];
  return `Against ${baseName}: ${words.filter(Boolean).join(", ")}.`;
}

function layoutPart(entry, layout, base) {
  const part = make("div", { class: "layout" });
  if (layout.why) part.append(make("p", { class: "warn" }, layout.why));
  if (layout.state === "missing") return part;
  const change = differences(layout, base);
  let last = [];
  for (const [path, members] of layout.groups) {
    path.forEach((label, depth) => {
      if (label === last[depth] && depth < path.length - 1) return;
      const here = depth === path.length - 1 ? make("small", {}, String(members.length)) : "";
      part.append(said("h5", label, { class: depth ? "sub" : "" }));
      if (here) part.lastChild.append(here);
    });
    last = path;
    part.append(
      make("ol", {}, members.map((member) => {
        const { up, was } = change.found.get(member) || {};
        const more = [move(up || 0), change.added.includes(member) && layout !== base ? make("span", { class: "move" }, "added") : null];
        if (was) more.push(make("span", { class: "was" }, `was under ${was}`));
        return memoryItem(entry, member, more);
      })),
    );
  }
  if (!layout.groups.length) part.append(make("p", { class: "soft" }, "(no stored memories)"));
  if (change.dropped.length && layout !== base)
    part.append(make("h5", {}, "Dropped: not in this context"), make("ol", { class: "dropped" }, change.dropped.map((member) => memoryItem(entry, member))));
  if (layout.pieces) {
    const context = layout.pieces.map((piece) => (typeof piece === "string" ? piece : entry.memories[piece])).join("");
    const title = `Context as the model read it (${layout.renderer})`;
    part.append(make("details", {}, make("summary", {}, title), said("pre", context, { class: "context" })));
  }
  return part;
}

function answerPart(answer, count) {
  const words = [count > 1 ? `Answer ${answer.generation + 1}` : "Answer", answer.verdict, answer.truncated ? "cut at its token limit" : ""];
  const missing = answer.status === "ok" ? "" : `${answer.status}${answer.reason ? ": " + answer.reason : ""}`;
  const part = make(
    "section", { class: "answer" },
    make("p", {}, make("strong", { class: "outcome " + answer.outcome }, outcomeWords(answer.outcome)), make("span", { class: "soft" }, " · " + words.filter(Boolean).join(" · "))),
    missing ? make("p", { class: "soft" }, missing + (answer.detail ? ` (${answer.detail})` : "")) : "",
    answer.response === null ? make("p", { class: "soft" }, answer.status === "no_response" ? "There is no answer." : "The answer is in neither the results nor a store.") : said("div", answer.response, { class: "reply long", tabIndex: 0, role: "group", "aria-label": words[0] }),
  );
  for (const [text, title] of [[answer.judge_reasoning, `Why, by the judge (${answer.judge})`], [answer.model_reasoning, "The model's reasoning"]])
    if (text) part.append(make("details", { open: title.startsWith("Why") && answer.outcome === "fails" }, make("summary", {}, title), said("div", text, { class: "reply" })));
  return part;
}

function armPart(entry, arm, baseArm, rows, before) {
  const { model, name } = DATA.arms[arm.arm], layout = entry.layouts[arm.layout];
  const base = baseArm && entry.layouts[baseArm.layout], change = layout.state === "missing" ? null : differences(layout, base);
  const words = [model, settings(entry, arm), arm.why].filter(Boolean).join(" · ");
  const alike = (other) => other.renderer === layout.renderer && JSON.stringify(other.groups) === JSON.stringify(layout.groups);
  const twin = change && arm !== baseArm && [baseArm, ...before].find((other) => entry.layouts[other.layout].state !== "missing" && alike(entry.layouts[other.layout]));
  const against = arm === baseArm ? "The layout compared with." : change && twin !== baseArm ? summary(change, layout, base, armName(entry, baseArm)) : "";
  const made = make(
    "article", { class: "arm" },
    make("header", {}, make("h4", {}, name), make("p", { class: "outcome " + arm.outcome }, outcomeWords(arm.outcome)), make("p", {}, words),
      against ? make("p", {}, against) : "", twin ? make("p", {}, `The same layout as ${armName(entry, twin)}.`) : ""),
    layoutPart(entry, layout, base),
    ...arm.answers.map((answer) => answerPart(answer, arm.answers.length)),
  );
  made.style.gridRow = `span ${2 + rows}`; // answers of one generation stand side by side
  return made;
}

// The settings that tell an arm from others of its name and model in this entry.
function settings(entry, { arm }) {
  const own = DATA.arms[arm], twins = entry.arms.map((one) => DATA.arms[one.arm]).filter((one) => one.name === own.name && one.model === own.model);
  return own.settings.filter((words) => !twins.every((twin) => twin.settings.includes(words))).join(", ");
}

function armName(entry, arm) {
  const { model, name } = DATA.arms[arm.arm];
  return [name, settings(entry, arm), new Set(DATA.arms.map((one) => one.model)).size > 1 ? model : ""].filter(Boolean).join(", ");
}

// Without a choice: the baseline first, then the arms that fit the filters, as many as stand side by side.
function shownArms(entry, wanted) {
  if (chosen) return entry.arms.filter((arm) => chosen.has(arm.arm));
  const fit = fitting(entry, wanted), pool = fit.length ? fit : entry.arms;
  const model = DATA.arms[pool[0].arm].model;
  const flat = entry.arms.find(({ arm }) => DATA.arms[arm].name === "flat" && DATA.arms[arm].model === model);
  const first = pool.filter(({ arm }) => DATA.arms[arm].name !== "flat (A/A)"), rest = pool.filter((arm) => !first.includes(arm));
  return [...new Set([...(flat ? [flat] : []), ...first, ...rest])].slice(0, matchMedia("(max-width: 44rem)").matches ? 2 : 4);
}

function showEntry(entry, found, wanted) {
  const place = found.indexOf(entry), arms = shownArms(entry, wanted);
  const link = (to, text) => (to ? make("a", { href: address({ entry: to.id }) }, text) : make("span", { class: "soft" }, text));
  const rebuilt = arms.filter((arm) => entry.layouts[arm.layout].state !== "missing");
  const baseArm = rebuilt.find((arm) => armName(entry, arm) === wanted.base) || rebuilt[0];
  const rows = Math.max(0, ...arms.map((arm) => arm.answers.length));
  const picks = entry.arms.map((arm) => make("label", {}, make("input", { type: "checkbox", value: arm.arm, checked: arms.includes(arm) }), armName(entry, arm)));
  const select = make("select", { name: "base" }, rebuilt.map((arm) => make("option", { selected: arm === baseArm }, armName(entry, arm))));
  const domains = [entry.memory_domain && `memories: ${entry.memory_domain}`, entry.query_domain && `query: ${entry.query_domain}`];
  const title = make("h2", { tabIndex: -1, class: "mono" }, entry.id);
  page.replaceChildren(
    make("nav", { "aria-label": "Entries" }, make("a", { href: address({ entry: "", base: "" }) }, `← All ${found.length} listed`),
      link(found[place - 1], "‹ Previous"), link(place < 0 ? null : found[place + 1], "Next ›"),
      make("span", { class: "soft" }, place < 0 ? "outside the filters" : `${place + 1} of ${found.length}`)),
    title,
    make("p", { class: "facts" }, [entry.type, ...domains].filter(Boolean).join(" · ")),
    make("h3", {}, "Query"),
    entry.query === null ? make("p", { class: "warn" }, "No entry of this id was given (--source): query, memories and layouts are not shown.") : said("blockquote", entry.query),
    make("h3", {}, `Memories (${entry.memories.length})`),
    entry.memories.length ? make("p", { class: "soft no-print" }, "Point at, focus or tap a memory to mark it in every layout; Escape takes the mark away.") : "",
    make("ol", { class: "memories" }, entry.memories.map((_, member) => memoryItem(entry, member, null, true))),
    make("h3", {}, "Layouts and answers, side by side"),
    make("p", { class: "soft" }, "Numbers are places in the stored list. ▲ and ▼ say how many places earlier or later a memory stands than in the layout compared with."),
    make("div", { class: "controls no-print" }, make("fieldset", { id: "picks" }, make("legend", {}, "Show"), picks), rebuilt.length > 1 ? make("label", {}, "Compare with", select) : ""),
    make("div", { class: "arms" }, arms.map((arm, at) => armPart(entry, arm, baseArm, rows, arms.slice(0, at)))),
  );
  select.addEventListener("change", () => go(address({ base: select.value }), true));
  return title;
}

// --- marking a memory everywhere ---

function mark(member) {
  for (const item of page.querySelectorAll(".memory")) {
    const lit = item.dataset.memory === member;
    item.classList.toggle("lit", lit);
    item.firstChild.setAttribute("aria-pressed", String(lit && pinned === member));
  }
}
const memberAt = (event) => event.target.closest?.(".memory")?.dataset.memory ?? null;
for (const kind of ["mouseover", "focusin"]) page.addEventListener(kind, (event) => mark(memberAt(event) ?? pinned));
page.addEventListener("click", (event) => {
  const member = memberAt(event);
  if (member === null || String(getSelection())) return;
  pinned = pinned === member ? null : member;
  mark(pinned);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") mark((pinned = null));
});
page.addEventListener("change", (event) => {
  if (!event.target.closest("#picks")) return;
  chosen = new Set([...page.querySelectorAll("#picks input:checked")].map((box) => Number(box.value)));
  update();
  page.querySelector(`#picks input[value="${event.target.value}"]`).focus();
});

// --- together ---

let open = null; // the entry on the page
function update() {
  const wanted = state(), found = matching(wanted), entry = DATA.entries.find((one) => one.id === wanted.entry);
  for (const name of FILTERS) if (form.elements[name].value !== (wanted[name] || "")) form.elements[name].value = wanted[name] || "";
  const unknown = wanted.entry && !entry ? ` There is no entry ${wanted.entry} here.` : "";
  const count = document.getElementById("count"), words = `${found.length} of ${DATA.entries.length} entries${unknown}`;
  if (count.textContent !== words) count.textContent = words; // read aloud when it is written
  document.title = `${entry ? entry.id : "Entries"} · structmem`;
  const before = open;
  if (before !== (entry || null)) pinned = chosen = null;
  open = entry || null;
  document.body.classList.toggle("reading", Boolean(entry));
  list.hidden = Boolean(entry);
  page.hidden = !entry;
  if (entry) {
    const title = showEntry(entry, found, wanted);
    mark(pinned);
    if (before !== entry) {
      scrollTo(0, 0);
      title.focus({ preventScroll: true });
    }
    return;
  }
  page.replaceChildren();
  showList(found, wanted);
  if (before) [...list.querySelectorAll("a")].find((a) => a.textContent === before.id)?.focus();
}

function go(to, quietly) {
  history[quietly ? "replaceState" : "pushState"](null, "", to);
  update();
}

function fill(name, values, words) {
  const all = make("option", { value: "" }, "all");
  form.elements[name].replaceChildren(all, ...values.map((value) => make("option", { value }, words ? words(value) : value)));
}

const outcomes = new Set(DATA.entries.flatMap((entry) => entry.arms.map((arm) => arm.outcome)));
fill("type", [...new Set(DATA.entries.map((entry) => entry.type))]);
fill("model", [...new Set(DATA.arms.map((arm) => arm.model))]);
fill("structure", [...new Set(DATA.arms.map((arm) => arm.name))]);
fill("outcome", [...Object.keys(GLYPH).filter((outcome) => outcomes.has(outcome)), "differ"], (outcome) => (outcome === "differ" ? "layouts differ" : outcomeWords(outcome)));
document.getElementById("private").textContent = DATA.texts
  ? "This page quotes queries, memories and answers: for its reader only. It loads nothing from anywhere."
  : "Texts of queries, memories and answers are left out of this page. It loads nothing from anywhere.";
const typed = () => go(address(Object.fromEntries(FILTERS.map((name) => [name, form.elements[name].value]))), true);
let waiting = 0; // some browsers allow few changes of the address in a second
form.addEventListener("input", (event) => {
  clearTimeout(waiting);
  if (event.target.name === "text") waiting = setTimeout(typed, 150);
  else typed();
});
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => {
  event.preventDefault();
  clearTimeout(waiting);
  go(address(Object.fromEntries(FILTERS.map((name) => [name, ""]))), true);
});
const others = Object.entries(DATA.pages || {}).map(([href, words]) => make("a", { href, ...(location.pathname.endsWith("/" + href) ? { "aria-current": "page" } : {}) }, words));
if (others.length) document.body.prepend(make("nav", { class: "top", "aria-label": "Report" }, others));
addEventListener("popstate", update);
update();
