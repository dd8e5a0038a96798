// The page of a search service: one query at a time, shown as cards that can be searched with in turn.
// Names and labels come from files of others: they are only ever set as text.
"use strict";

const $ = id => document.getElementById(id);
const state = { file: null, id: null, results: [], preview: null, turn: 0 };
const files = []; // searched with on this page; the browser's history holds their numbers

function say(text, problem = false) {
  $("status").textContent = text;
  $("status").classList.toggle("problem", problem);
}

function filter() {
  const label = $("label").value.trim();
  return label ? { label } : {};
}

async function ask() {
  if (!state.file && !state.id) return;
  const turn = ++state.turn;
  const k = Number($("count").value);
  let request;
  if (state.file) {
    const form = new FormData();
    form.append("image", state.file, "query");
    form.append("k", k);
    form.append("where", JSON.stringify(filter()));
    request = { method: "POST", body: form };
  } else {
    const body = JSON.stringify({ id: state.id, k, where: filter() });
    request = { method: "POST", body, headers: { "Content-Type": "application/json" } };
  }
  say("Searching …");
  $("results").setAttribute("aria-busy", "true");
  try {
    const answer = await fetch("search", request);
    const found = await answer.json();
    if (turn !== state.turn) return; // another query was asked meanwhile
    if (!answer.ok) {
      show([]);
      say(typeof found.detail === "string" ? found.detail : "The image could not be searched with.", true);
      return;
    }
    show(found.results);
  } catch {
    if (turn === state.turn) say("The service cannot be reached.", true);
  } finally {
    if (turn === state.turn) $("results").removeAttribute("aria-busy");
  }
}

function show(results) {
  state.results = results;
  const list = $("results");
  list.classList.remove("examples");
  list.replaceChildren(...results.map(card));
  thin();
}

// Before the first query: some images of the index, to search with.
function offer(items) {
  $("results").classList.add("examples");
  $("results").replaceChildren(...items.map(card));
  say(items.length ? "Or begin with one of these:" : "The index holds no images yet.");
}

// Stands where the picture would be.
function missing() {
  return Object.assign(document.createElement("span"), { className: "missing", textContent: "no picture" });
}

// With a minus sign, and none before a zero.
function decimals(number, digits) {
  return number.toFixed(digits).replace(/^-(?=[0.]+$)/, "").replace("-", "−");
}

function card(result, place) {
  const item = $("card").content.cloneNode(true).firstElementChild;
  const pick = selector => item.querySelector(selector);
  const label = result.metadata.label || "";
  const name = result.metadata.name || result.id;
  const button = pick("button");
  button.dataset.id = result.id;
  button.title = result.id;
  const found = result.similarity !== undefined;
  const verdict = result.verdict ? `, ${result.verdict}` : "";
  const what = found ? `Result ${place + 1}: ${label || name}, similarity ${decimals(result.similarity, 2)}${verdict}` : label || name;
  button.setAttribute("aria-label", `${what}. Search with it.`);
  pick("img").src = result.thumbnail.slice(1); // relative, so that the page works below a path, too
  pick("img").addEventListener("error", event => event.target.replaceWith(missing()));
  if (found) {
    button.dataset.similarity = result.similarity;
    pick(".fill").style.setProperty("--share", Math.max(0, Math.min(1, result.similarity)));
    pick(".similarity").textContent = decimals(result.similarity, 3);
  }
  if (result.verdict) {
    pick(".verdict").textContent = result.verdict;
    pick(".verdict").classList.add(result.verdict);
  }
  pick(".label").textContent = label;
  pick(".name").textContent = name;
  button.addEventListener("click", () => searchWith(result.id));
  return item;
}

// The slider hides what is below it; the answers themselves stay as they are. At its left end it hides nothing.
function thin() {
  const least = Number($("threshold").value);
  $("least").textContent = least > 0 ? least.toFixed(2) : "any";
  if (!state.file && !state.id) return;
  let shown = 0;
  for (const item of $("results").children) {
    item.hidden = least > 0 && Number(item.firstElementChild.dataset.similarity) < least;
    shown += !item.hidden;
  }
  const all = state.results.length, label = filter().label;
  const none = label ? `No other image has the label “${label}”.` : "The index holds no other image.";
  say(all === 0 ? none : shown === all ? `${all} results` : `${shown} of ${all} results have a similarity of at least ${least.toFixed(2)}`);
}

function preview(source, name) {
  if (state.preview) URL.revokeObjectURL(state.preview);
  state.preview = source.startsWith("blob:") ? source : null;
  $("query").src = source;
  $("query").alt = "The image searched with";
  $("query").hidden = false;
  $("name").textContent = name;
  $("asked").hidden = false;
}

function searchFile(file, keep = true) {
  if (!file) return;
  if (file.type && !file.type.startsWith("image/")) {
    say("That is not an image.", true);
    return;
  }
  state.file = file;
  state.id = null;
  preview(URL.createObjectURL(file), file.name);
  if (keep) history.pushState({ file: files.push(file) - 1 }, "", "#");
  ask();
}

function searchWith(id, keep = true) {
  state.file = null;
  state.id = id;
  preview(`thumbnails/${encodeURIComponent(id)}`, id);
  if (keep) history.pushState({ id }, "", `#${encodeURIComponent(id)}`);
  window.scrollTo(0, 0);
  ask();
}

function fromAddress(kept) {
  if (kept && files[kept.file]) searchFile(files[kept.file], false);
  else if (location.hash.length > 1) searchWith(decodeURIComponent(location.hash.slice(1)), false);
}

function move(event) {
  const cards = [...document.querySelectorAll("#results li:not([hidden]) .card")];
  const at = cards.indexOf(document.activeElement);
  if (!cards.length || (at < 0 && event.key !== "ArrowDown")) return;
  const row = cards.filter(c => c.offsetTop === cards[0].offsetTop).length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: at < 0 ? 1 : row, ArrowUp: -row }[event.key];
  const next = at < 0 ? 0 : at + step;
  if (next < 0 || next >= cards.length) return;
  event.preventDefault();
  cards[next].focus();
}

addEventListener("keydown", event => {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);
  if (event.key === "/" && !typing) {
    event.preventDefault();
    $("label").focus();
  } else if (event.key.startsWith("Arrow") && !typing) move(event);
  else if (event.key === "Escape" && typing) document.activeElement.blur();
});
addEventListener("dragover", event => { event.preventDefault(); $("drop").classList.add("over"); });
addEventListener("dragleave", event => { if (!event.relatedTarget) $("drop").classList.remove("over"); });
addEventListener("drop", event => {
  event.preventDefault();
  $("drop").classList.remove("over");
  searchFile(event.dataTransfer.files[0]);
});
addEventListener("paste", event => {
  const file = [...event.clipboardData.files].find(f => f.type.startsWith("image/"));
  if (file) { event.preventDefault(); searchFile(file); }
});
addEventListener("popstate", event => fromAddress(event.state));
for (const id of ["file", "camera"]) {
  $(id).addEventListener("change", event => { searchFile(event.target.files[0]); event.target.value = ""; });
}
$("label").addEventListener("change", ask);
$("count").addEventListener("change", ask);
$("threshold").addEventListener("input", thin);

async function begin() {
  try {
    const paths = ["health", "labels", "examples"];
    const [health, labels, examples] = await Promise.all(paths.map(async path => (await fetch(path)).json()));
    $("about").textContent = `${health.items.toLocaleString("en")} images, model ${health.model}` +
      (health.recall === null ? "" : `, approximate search (recall ${health.recall})`);
    if (health.same !== null) {
      $("marks").textContent = `same from ${health.same.toFixed(2)}, similar from ${health.similar.toFixed(2)}`;
      $("marks").hidden = false;
    }
    $("labels").replaceChildren(...Object.keys(labels).map(name => Object.assign(document.createElement("option"), { value: name })));
    if (!state.file && !state.id) offer(examples);
  } catch {
    say("The service cannot be reached.", true);
  }
  fromAddress(history.state);
}
begin();
