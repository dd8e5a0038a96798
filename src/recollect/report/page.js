"use strict";
// Pictures enlarge, rows are filtered by class, and the map moves. The page says everything without this script too.
(() => {
  const all = (selector, at = document) => [...at.querySelectorAll(selector)];
  const make = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children); // as text: names are never read as HTML
    return made;
  };

  // Pictures: one stop of the Tab key per group, arrow keys inside, Enter or a click enlarges.
  const groups = all("[data-pics]").map((group) => all(".pic", group)).filter((group) => group.length);
  const place = new Map(groups.flatMap((group) => group.map((picture, at) => [picture, [group, at]])));
  const reach = (picture) => {
    const [group] = place.get(picture);
    group.forEach((other) => (other.tabIndex = other === picture ? 0 : -1));
  };
  for (const group of groups) {
    group.forEach((picture) => {
      picture.setAttribute("role", "button");
      picture.setAttribute("aria-haspopup", "dialog");
    });
    reach(group[0]);
  }
  const big = make("div", { className: "big-picture" });
  const facts = make("dl");
  const step = (by, words) =>
    make("button", { type: "button", textContent: words, onclick: () => move(by) });
  const close = make("button", { type: "button", textContent: "Close", onclick: () => dialog.close() });
  const dialog = make("dialog", { className: "closer" }, big, facts,
    make("p", { className: "buttons" }, step(-1, "← Previous"), step(1, "Next →"), close));
  dialog.setAttribute("aria-label", "Picture");
  let shown = null;
  const enlarge = (picture) => {
    shown = picture;
    big.className = "big-picture " + picture.className;
    big.setAttribute("role", "img");
    big.setAttribute("aria-label", picture.getAttribute("aria-label"));
    const { class: name, similarity } = picture.dataset;
    // The label is for those who hear it; here, class and similarity have lines of their own.
    const label = [`: class ${name}`, ` of class ${name}`, `, similarity ${similarity}`]
      .reduce((words, part) => words.replace(part, ""), picture.getAttribute("aria-label"));
    const rows = [["File", picture.title], ["Class", name], ["Similarity", similarity], ["Shown as", label]];
    facts.replaceChildren(...rows.filter(([, value]) => value).flatMap(([name, value]) =>
      [make("dt", { textContent: name }), make("dd", {}, make("bdi", { textContent: value }))]));
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0; // the button with the focus may be below a low window's edge
    reach(picture);
  };
  const move = (by) => {
    const [group, at] = place.get(shown);
    enlarge(group[(at + by + group.length) % group.length]);
  };
  document.addEventListener("click", (event) => {
    const picture = event.target.closest(".pic");
    if (picture && place.has(picture)) enlarge(picture);
    else if (event.target === dialog) dialog.close(); // the dark ground around it
  });
  const arrows = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (dialog.open) {
      if (event.key in arrows) move(arrows[event.key]), event.preventDefault();
      return;
    }
    const found = place.get(event.target);
    if (!found) return;
    if (event.key === "Enter" || event.key === " ") enlarge(event.target), event.preventDefault();
    if (event.key in arrows) {
      const next = found[0][found[1] + arrows[event.key]];
      if (next) reach(next), next.focus();
      event.preventDefault();
    }
  });
  dialog.addEventListener("close", () => shown && shown.focus());
  document.body.append(dialog);

  // Rows of one class.
  const filter = document.getElementById("filter");
  const maps = [];
  if (filter) {
    // The field drops line breaks from what is typed or chosen, so they do not count in names either.
    const plain = (name) => name.replace(/[\r\n]/g, "").trim().toLowerCase();
    const rows = all("[data-classes], .by-class tbody tr");
    const classes = rows.map((row) =>
      row.dataset.classes ? JSON.parse(row.dataset.classes) : all("bdi", row).map((name) => name.textContent));
    const offered = new Set(all("#offered option").map((option) => plain(option.value)));
    const said = document.getElementById("filtered");
    // What has no row left is hidden too: tables, folds, and a heading with everything up to the next one.
    const chapter = (heading) => {
      const found = [heading];
      for (let next = heading.nextElementSibling; next && next.tagName !== "H3"; next = next.nextElementSibling) found.push(next);
      return found;
    };
    const folds = all("details.more");
    const titles = folds.map((fold) => fold.querySelector("summary").textContent);
    const inside = folds.map((fold) => rows.filter((row) => fold.contains(row)));
    const parts = [...folds, ...all(".by-class .scroll, .gallery, .groups")].map((part) => [part]).concat(all("main h3").map(chapter))
      .map((part) => [part, rows.filter((row) => part.some((piece) => piece.contains(row)))]).filter(([, held]) => held.length);
    let unfolded = null; // what was open before there was a filter
    const apply = () => {
      const wanted = plain(filter.value);
      // A class chosen from the list is that class alone; other words match every class that contains them.
      const matches = (name) => (offered.has(wanted) ? plain(name) === wanted : plain(name).includes(wanted));
      let left = 0;
      rows.forEach((row, at) => (left += !(row.hidden = !classes[at].some(matches))));
      const gone = new Set(parts.flatMap(([part, held]) => (held.every((row) => row.hidden) ? part : [])));
      parts.forEach(([part]) => part.forEach((piece) => (piece.hidden = gone.has(piece))));
      unfolded = unfolded || new Set(folds.filter((fold) => fold.open));
      folds.forEach((fold) => (fold.open = wanted ? !gone.has(fold) : unfolded.has(fold)));
      if (!wanted) unfolded = null;
      folds.forEach((fold, at) => {
        const kept = inside[at].filter((row) => !row.hidden).length, less = wanted && kept < inside[at].length;
        fold.querySelector("summary").textContent = less ? `${kept} of: ${titles[at]}` : titles[at];
      });
      said.textContent = !wanted ? "" : left ? `${left} of ${rows.length} rows` : "no row on this page";
      maps.forEach((map) => map.highlight(wanted ? matches : null));
    };
    filter.addEventListener("input", apply);
    filter.form.addEventListener("submit", (event) => event.preventDefault());
    filter.form.hidden = false;
  }

  // The map: one canvas per embedding, all of the same images.
  const numbers = (text, kind) => new kind(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  for (const words of all(".scripted")) words.hidden = false;
  for (const box of all(".map")) {
    const labels = numbers(box.dataset.labels, Uint16Array), tiles = numbers(box.dataset.tiles, Uint16Array);
    const names = JSON.parse(box.dataset.files), classes = JSON.parse(box.dataset.kinds);
    const sheet = box.querySelector("img.sheet"), side = +box.dataset.side, columns = +box.dataset.columns;
    const palettes = [box.dataset.light, box.dataset.dark].map((text) => JSON.parse(text));
    const dark = matchMedia("screen and (prefers-color-scheme: dark)");
    const NONE = 65535;
    const order = [...labels.keys()].sort((a, b) => labels[a] - labels[b]); // so that the pen changes its colour once per class
    let under = -1, matching = null;
    const tip = make("div", { className: "tip", hidden: true });
    const thumb = make("canvas", { width: 96, height: 96 }), words = make("div");
    tip.append(thumb, words);
    tip.setAttribute("role", "status");
    box.append(tip);
    const tile = (pen, at, x, y, size) =>
      pen.drawImage(sheet, (tiles[at] % columns) * side, Math.floor(tiles[at] / columns) * side, side, side, x, y, size, size);
    const views = all("figure", box).map((figure) => {
      const points = numbers(figure.dataset.points, Uint16Array);
      const canvas = make("canvas", { tabIndex: 0, className: "plane" });
      canvas.setAttribute("role", "application");
      canvas.setAttribute("aria-label", figure.querySelector("img").alt +
        " Arrow keys move the map, plus and minus zoom, zero shows all; the image at the cross is named below.");
      const still = figure.querySelector("img");
      still.hidden = true;
      still.before(canvas);
      const view = { canvas, points, zoom: 1, x: 0.5, y: 0.5, drawn: false };
      const button = (words, name, act) => {
        const made = make("button", { type: "button", textContent: words, onclick: act });
        made.setAttribute("aria-label", name);
        return made;
      };
      canvas.after(make("p", { className: "buttons" }, button("+", "Zoom in", () => zoom(view, 1.6)),
        button("−", "Zoom out", () => zoom(view, 1 / 1.6)), button("Show all", "Show all", () => reset(view))));
      return view;
    });
    const where = (view, at) => {
      const size = view.canvas.clientWidth, scale = size * 0.94 * view.zoom;
      return [(view.points[2 * at] / 65535 - view.x) * scale + size / 2,
        (view.points[2 * at + 1] / 65535 - view.y) * scale + size / 2];
    };
    const draw = (view) => {
      const { canvas } = view, size = canvas.clientWidth, dense = window.devicePixelRatio || 1;
      if (!size) return;
      canvas.width = canvas.height = Math.round(size * dense);
      const pen = canvas.getContext("2d");
      pen.scale(dense, dense);
      const seen = [];
      for (const at of order) {
        const [x, y] = where(view, at);
        if (x > -20 && y > -20 && x < size + 20 && y < size + 20) seen.push([at, x, y]);
      }
      const big = Math.min(72, Math.max(0, (size / Math.sqrt(seen.length + 1)) * 0.8));
      const pictures = view.zoom > 1.2 && big >= 18 && sheet.naturalWidth > 0;
      const radius = pictures ? big / 2 : Math.min(5, Math.max(1.4, Math.min(3, 110 / Math.sqrt(labels.length))) + (view.zoom - 1) * 0.35);
      const colours = palettes[+dark.matches];
      const lit = (at) => (matching ? matching.has(labels[at]) : under < 0 || labels[at] === labels[under]);
      for (const bright of [false, true]) {
        let colour = -1;
        pen.globalAlpha = bright ? 1 : 0.12;
        for (const [at, x, y] of seen) {
          if (lit(at) !== bright) continue;
          if (labels[at] !== colour) pen.fillStyle = colours[(colour = labels[at]) % colours.length];
          if (pictures && tiles[at] !== NONE) {
            pen.fillRect(x - radius - 2, y - radius - 2, 2 * radius + 4, 2 * radius + 4);
            tile(pen, at, x - radius, y - radius, 2 * radius);
          } else if (labels.length > 6000) pen.fillRect(x - radius, y - radius, 2 * radius, 2 * radius);
          else pen.beginPath(), pen.arc(x, y, Math.min(radius, 5), 0, 7), pen.fill();
        }
      }
      pen.globalAlpha = 1;
      pen.strokeStyle = getComputedStyle(canvas).color;
      if (under >= 0) {
        const [x, y] = where(view, under);
        pen.lineWidth = 2;
        pen.beginPath(), pen.arc(x, y, Math.max(8, radius + 5), 0, 7), pen.stroke();
      }
      if (document.activeElement === canvas && canvas.matches(":focus-visible")) {
        pen.lineWidth = 1;
        pen.beginPath(), pen.moveTo(size / 2 - 9, size / 2), pen.lineTo(size / 2 + 9, size / 2);
        pen.moveTo(size / 2, size / 2 - 9), pen.lineTo(size / 2, size / 2 + 9), pen.stroke();
      }
    };
    let waiting = false;
    const redraw = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => ((waiting = false), views.forEach(draw)));
    };
    const nearest = (view, x, y, reach) => {
      let best = -1, least = reach * reach;
      for (let at = 0; at < labels.length; at += 1) {
        const [px, py] = where(view, at), far = (px - x) ** 2 + (py - y) ** 2;
        if (far < least) (best = at), (least = far);
      }
      return best;
    };
    const tell = (at, view, x, y) => {
      if (at !== under) redraw();
      under = at;
      tip.hidden = at < 0;
      if (at >= 0) {
        words.replaceChildren(make("strong", {}, make("bdi", { textContent: classes[labels[at]] })),
          make("br"), make("bdi", { textContent: names[at] }));
        thumb.hidden = tiles[at] === NONE;
        const pen = thumb.getContext("2d");
        pen.fillStyle = "#fff", pen.fillRect(0, 0, 96, 96);
        if (tiles[at] !== NONE) tile(pen, at, 0, 0, 96);
        const box_ = box.getBoundingClientRect(), own = view.canvas.getBoundingClientRect();
        const left = own.left - box_.left + x + 14, top = own.top - box_.top + y + 14;
        tip.style.left = `${Math.max(0, Math.min(left, box_.width - tip.offsetWidth))}px`;
        tip.style.top = `${top}px`;
      }
    };
    const zoom = (view, by, x = null, y = null) => {
      const size = view.canvas.clientWidth, before = size * 0.94 * view.zoom;
      view.zoom = Math.max(1, Math.min(60, view.zoom * by));
      const after = size * 0.94 * view.zoom;
      if (x !== null) (view.x += (x - size / 2) * (1 / before - 1 / after)), (view.y += (y - size / 2) * (1 / before - 1 / after));
      if (view.zoom === 1) view.x = view.y = 0.5;
      view.canvas.classList.toggle("zoomed", view.zoom > 1);
      redraw();
    };
    const reset = (view) => (zoom(view, 0), tell(-1));
    for (const view of views) {
      const { canvas } = view;
      const held = new Map(); // where the mouse button or each finger is
      const at = (event) => [event.offsetX, event.offsetY];
      const point = (event, reach) => tell(nearest(view, ...at(event), reach), view, ...at(event));
      const touched = (event) => event.pointerType === "touch";
      const apart = () => Math.hypot(...[0, 1].map((axis) => [...held.values()].reduce((a, b) => b[axis] - a[axis])));
      canvas.addEventListener("pointerdown", (event) => {
        held.set(event.pointerId, at(event));
        canvas.setPointerCapture(event.pointerId);
        if (touched(event)) point(event, 24); // a finger covers more than a dot
      });
      canvas.addEventListener("pointerup", (event) => held.delete(event.pointerId));
      canvas.addEventListener("pointercancel", (event) => (held.delete(event.pointerId), tell(-1))); // it scrolls the page
      canvas.addEventListener("pointermove", (event) => {
        const [x, y] = at(event), last = held.get(event.pointerId);
        if (held.size === 2) {
          const before = apart();
          held.set(event.pointerId, [x, y]);
          zoom(view, apart() / before, ...[0, 1].map((axis) => [...held.values()].reduce((sum, one) => sum + one[axis] / 2, 0)));
        } else if (last && view.zoom > 1) {
          const scale = canvas.clientWidth * 0.94 * view.zoom;
          view.x -= (x - last[0]) / scale, view.y -= (y - last[1]) / scale;
          held.set(event.pointerId, [x, y]);
          redraw();
        } else point(event, 14);
      });
      canvas.addEventListener("pointerleave", (event) => touched(event) || tell(-1)); // what a tap showed stays
      // Without a click first, the wheel scrolls the page as everywhere else.
      canvas.addEventListener("wheel", (event) => {
        if (document.activeElement !== canvas && !event.ctrlKey) return;
        event.preventDefault();
        zoom(view, Math.exp(-event.deltaY / 400), ...at(event));
      }, { passive: false });
      canvas.addEventListener("keydown", (event) => {
        const by = 0.12 / view.zoom, size = canvas.clientWidth;
        const act = { ArrowLeft: () => (view.x -= by), ArrowRight: () => (view.x += by), ArrowUp: () => (view.y -= by),
          ArrowDown: () => (view.y += by), "+": () => zoom(view, 1.6), "=": () => zoom(view, 1.6),
          "-": () => zoom(view, 1 / 1.6), 0: () => reset(view) }[event.key];
        if (!act || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        act();
        redraw();
        tell(nearest(view, size / 2, size / 2, size), view, size / 2, size / 2);
      });
      canvas.addEventListener("focus", redraw);
      canvas.addEventListener("blur", () => (tell(-1), redraw()));
    }
    maps.push({
      highlight: (matches) => {
        matching = matches && new Set(classes.flatMap((name, at) => (matches(name) ? [at] : [])));
        redraw();
      },
    });
    dark.addEventListener("change", () => views.forEach(draw)); // at once: it may be printed now
    new ResizeObserver(redraw).observe(box);
    sheet.decode().catch(() => 0).then(redraw);
  }
  document.documentElement.classList.add("scripted");
})();
