const shortened = (label) => (label.length > 26 ? `${label.slice(0, 25)}…` : label);

/* The width of a name at the end of its line. */
const widthOf = (label) => {
  const pen = make("canvas").getContext("2d");
  pen.font = "700 12.5px system-ui, sans-serif";
  return pen.measureText(shortened(label)).width;
};

/* Curves of a run: methods shown and hidden, values under the pointer, zoom by brush or
   keys. On the first screen there is one quantity, and no controls. */

function drawCurves(place, run, isFirst = false) {
  if (run.quantities.length === 0) return; // no model was evaluated
  const main = run.quantities.find((q) => q.key === run.main) ?? run.quantities[0];
  const state = {
    ...{ quantity: main, axis: run.axes[0].key, log: main.log, spread: "leaders" },
    ...{ hidden: new Set(), focus: null, at: null, zoom: null, whole: false, from: null },
  };
  const svg = make("svg", {
    ...{ class: "chart", tabindex: 0, role: "application" },
    "aria-label":
      "Curves. Arrow keys move the cross-hair, Enter marks one end of a range and then " +
      "the other, Escape shows the whole range. The tables below have the numbers.",
  });
  const tip = make("div", { class: "tip", role: "status", hidden: true });
  const plot = make("div", { class: "plot" }, svg, tip);
  const outside = make("p", { class: "note", role: "status" });
  const every = [...run.methods.keys()];
  const set = (name) => (value) => {
    Object.assign(state, { [name]: value, at: null, from: null });
    if (["axis", "quantity"].includes(name)) state.zoom = null;
    draw();
  };
  const log = checkbox("log scale", state.log, set("log"));
  const reset = button("whole range", () => {
    Object.assign(state, { whole: !state.whole && !state.zoom, zoom: null, from: null });
    draw();
  });
  const controls = make(
    "div",
    { class: "controls" },
    chooser("quantity", run.quantities.map((q) => [q.key, q.name]), main.key, (key) => {
      const quantity = run.quantities.find((q) => q.key === key);
      state.log = log.firstChild.checked = quantity.log;
      set("quantity")(quantity);
    }),
    chooser("over", run.axes.map((a) => [a.key, a.name]), state.axis, set("axis")),
    chooser(
      "show",
      [
        ["leaders", "bands of the leaders"],
        ["band", "all bands (± deviation)"],
        ["seeds", "every seed"],
        ["none", "means only"],
      ],
      state.spread,
      set("spread"),
    ),
    log,
    reset,
  );
  const buttons = every.map((k) =>
    make(
      "button",
      {
        ...{ type: "button", "aria-pressed": "true", onclick: () => toggle([k]) },
        ...{ onpointerenter: () => look(k), onpointerleave: () => look(null) },
        ...{ onfocus: () => look(k), onblur: () => look(null) },
      },
      swatch(run.methods[k]),
      run.methods[k].label,
    ),
  );
  const legend = make("div", { class: "legend" }, ...buttons);
  if (!isFirst)
    legend.append(
      button("show all", () => toggle([...state.hidden]), { class: "all" }),
      button("hide all", () => toggle(every.filter((k) => !state.hidden.has(k))), { class: "all" }),
    );
  place.append(...(isFirst ? [] : [controls]), plot, legend, outside);

  let x, y, shown, box; // scales and what is drawn, for the pointer

  function toggle(which) {
    for (const k of which) state.hidden.has(k) ? state.hidden.delete(k) : state.hidden.add(k);
    buttons.forEach((b, k) => b.setAttribute("aria-pressed", String(!state.hidden.has(k))));
    draw();
  }

  /* One method stands out while its name has the pointer or the focus. */
  function look(k) {
    state.focus = k;
    for (const part of svg.querySelectorAll("[data-method]"))
      part.classList.toggle("dim", k !== null && Number(part.dataset.method) !== k);
  }

  const unit = () => (state.quantity.up ? 100 : 1); // accuracies are in per cent
  const named = () => state.quantity.name + (state.quantity.up ? " (%)" : "");
  const axisName = () => run.axes.find((a) => a.key === state.axis).name;

  function read(k) {
    const [method, factor] = [run.methods[k], unit()];
    const rows = method.curves[state.quantity.key];
    const points = run.rounds.map((round, t) => {
      const seeds = rows.map((row) => (row[t] === null ? null : factor * row[t]));
      return { x: method.at[state.axis][t], round, seeds, value: statistics(seeds) };
    });
    return { k, method, points, leads: state.quantity.leaders.includes(method.label) };
  }

  const fits = (value) => value !== null && Number.isFinite(value) && (!state.log || value > 0);
  const inside = (p) => !state.zoom || (p.x >= state.zoom[0] && p.x <= state.zoom[1]);
  const meansOf = (points) => points.map((p) => p.value?.mean ?? null).filter(fits);

  /* Ends of the vertical axis: what differs, unless the reader wants everything. */
  function limits() {
    const [low, high] = state.quantity.window.map((end) => end && end * unit());
    if (!state.whole && !state.zoom && low !== null && high !== null && (!state.log || low > 0)) return [low, high];
    const values = shown.flatMap((line) => meansOf(line.points.filter(inside)));
    if (!values.length) return state.log ? [0.1, 1] : [0, 1];
    const [least, most] = [Math.min(...values), Math.max(...values)];
    if (state.log) return least === most ? [least / 2, most * 2] : [least * (least / most) ** 0.04, most * (most / least) ** 0.04];
    const margin = (most - least || Math.abs(most) || 1) * 0.04;
    return [least - margin, most + margin];
  }

  function path(points) {
    let [text, pen] = ["", "M"];
    for (const [px, value] of points) {
      if (!fits(value)) {
        pen = "M";
        continue;
      }
      const py = Math.max(-1e4, Math.min(1e4, y(value))); // far out, browsers differ
      text += `${pen}${x(px).toFixed(1)},${py.toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  function band(points, floor) {
    const kept = points.filter((p) => p.value && fits(p.value.mean));
    const below = (v) => (state.log ? Math.max(v, floor) : v); // a logarithm has no zero
    const upper = kept.map((p) => [p.x, p.value.mean + p.value.spread]);
    const lower = kept.map((p) => [p.x, below(p.value.mean - p.value.spread)]).reverse();
    return kept.length > 1 ? `${path([...upper, ...lower])}Z` : "";
  }

  function drawLine(area, { k, method, points, leads }, low) {
    const line = (css, more) => make("path", { "data-method": k, class: `${css} ${method.colour}`, ...more });
    if (state.spread === "band" || (state.spread === "leaders" && leads))
      area.append(line("band", { d: band(points, low / 10) }));
    if (state.spread === "seeds")
      for (const s of run.seeds.keys())
        area.append(line("curve seed", { "stroke-width": 1, d: path(points.map((p) => [p.x, p.seeds[s]])) }));
    const look = { "stroke-width": method.width, "stroke-dasharray": strokes(method) };
    area.append(line("curve mean", { ...look, d: path(points.map((p) => [p.x, p.value?.mean ?? null])) }));
    const seen = points.filter((p) => p.value && fits(p.value.mean) && inside(p));
    const gap = Math.max(1, Math.floor(seen.length / 8));
    if (method.marker)
      for (const p of seen.filter((_, t) => t % gap === Math.floor(gap / 2))) {
        area.append(mark(method.marker, method.colour, x(p.x), y(p.value.mean)));
        area.lastChild.dataset.method = k;
      }
  }

  /* Names beside the ends of lines, none on another; where they do not all fit, those of
     the best. */
  function nameEnds() {
    const [step, top, base] = [14, box.top + 4, box.height - box.bottom - 2];
    const ends = shown.flatMap(({ k, method, points, leads }) => {
      const last = points.filter((p) => p.value && fits(p.value.mean) && inside(p)).pop();
      const at = last ? y(last.value.mean) : -1;
      return at >= top - 6 && at <= base + 6 ? [{ k, method, leads, x: x(last.x), y: at }] : [];
    });
    const order = state.quantity.up ? 1 : -1;
    ends.sort((a, b) => b.leads - a.leads || order * (a.y - b.y));
    const kept = ends.slice(0, Math.floor((base - top) / step)).sort((a, b) => a.y - b.y);
    let free = top;
    for (const end of kept) free = (end.at = Math.max(end.y, free)) + step;
    let most = base;
    for (const end of [...kept].reverse()) most = (end.at = Math.min(end.at, most)) - step;
    const left = box.width - box.right + 14;
    for (const { k, method, leads, x: px, y: py, at } of kept) {
      const text = shortened(method.label);
      svg.append(
        make("path", { class: `leader ${method.colour}`, "data-method": k, d: `M${px + 2},${py}L${left - 3},${at}` }),
        make(
          "text",
          { class: `end ${method.colour}`, x: left, y: at + 4, "data-method": k, "font-weight": leads ? 700 : 400 },
          text,
        ),
      );
    }
  }

  /* Of panels: their names; else round values of the axis. */
  function ticksBelow(first, last, width) {
    if (run.ticks) return run.ticks.map((name, k) => [x(k + 1), name]);
    return niceTicks(first, last, Math.min(8, width / 90)).map((v) => [x(v), show(v)]);
  }

  function draw() {
    const width = Math.max(230, plot.clientWidth || 900);
    shown = every.filter((k) => !state.hidden.has(k)).map(read);
    const isWide = width >= 560;
    const longest = Math.max(0, ...shown.map(({ method }) => widthOf(method.label)));
    const height = isFirst ? (isWide ? 340 : 260) : isWide ? 430 : 320;
    box = { width, height, left: 58, right: isWide ? 22 + longest : 12, top: 10, bottom: 44 };
    const xs = shown.flatMap((line) => line.points.map((p) => p.x)).filter(Number.isFinite);
    const [first, last] = state.zoom ?? (xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1]);
    const [low, high] = limits();
    x = scale(first, last, box.left, width - box.right);
    y = scale(low, high, height - box.bottom, box.top, state.log);
    const ticks = state.log ? logTicks(low, high) : niceTicks(low, high, 6);
    const area = panel(
      svg,
      box,
      { ticks: ticksBelow(first, last, width), name: axisName() },
      { ticks: ticks.map((v) => [y(v), show(v)]), name: named() },
    );
    for (const line of [...shown].sort((a, b) => a.leads - b.leads || a.method.width - b.method.width)) drawLine(area, line, low);
    if (isWide) nameEnds();
    legend.hidden = isFirst && isWide;
    svg.append(make("g", { class: "pointer" }));
    const lost = shown.filter(
      ({ points }) => !points.some((p) => p.value && inside(p) && p.value.mean >= low && p.value.mean <= high),
    );
    const names = lost.map(({ method }) => method.label).join(", ");
    outside.textContent = names ? `Outside the panel, which shows what differs between the others: ${names}.` : "";
    reset.textContent = state.zoom || !state.whole ? "whole range" : "what differs";
    if (state.focus !== null) look(state.focus);
    point();
  }

  function where({ round }) {
    if (run.ticks) return `${axisName()} ${run.ticks[round - 1]}`;
    return state.axis === "rounds" ? `round ${round}` : `${show(state.at)} ${axisName()}`;
  }

  /* The values of all methods at the place under the cross-hair. */
  function point() {
    const layer = svg.querySelector(".pointer");
    const [top, base] = [box.top, box.height - box.bottom];
    layer.replaceChildren();
    if (state.from !== null) {
      const [a, b] = [x(state.from), x(state.at ?? state.from)].sort((p, q) => p - q);
      layer.append(make("rect", { class: "brush", x: a, y: top, width: b - a, height: base - top }));
    }
    const near = (points) =>
      points.reduce((best, p) => (!best || Math.abs(p.x - state.at) < Math.abs(best.x - state.at) ? p : best), null);
    const rows = state.at === null ? [] : shown.map(({ method, points }) => ({ method, p: near(points) }));
    tip.hidden = rows.length === 0;
    if (!rows.length) return;
    const sign = state.quantity.up ? -1 : 1;
    const rank = ({ p }) => (p.value ? sign * p.value.mean : Number.MAX_VALUE);
    rows.sort((a, b) => rank(a) - rank(b));
    const px = x(state.at);
    layer.append(make("line", { class: "cross", x1: px, x2: px, y1: top, y2: base }));
    for (const { method, p } of rows) {
      const py = p.value && fits(p.value.mean) ? y(p.value.mean) : -1;
      if (py >= top && py <= base)
        layer.append(make("circle", { class: `dot ${method.colour}`, cx: x(p.x), cy: py, r: 3 }));
    }
    const most = box.width < 560 ? 8 : 24;
    const cells = ({ method, p }) => [
      make("td", {}, swatch(method), method.label),
      make("td", {}, p.value ? show(p.value.mean) : "diverged"),
      make("td", {}, p.value && run.seeds.length > 1 ? `± ${show(p.value.spread, 2)}` : ""),
    ];
    tip.replaceChildren(
      make("strong", {}, where(rows[0].p)),
      make("table", {}, make("tbody", {}, ...rows.slice(0, most).map((row) => make("tr", {}, ...cells(row))))),
      ...(rows.length > most ? [make("small", {}, `${rows.length - most} more`)] : []),
    );
    putBeside(tip, plot.clientWidth, px, top);
  }

  const grid = () =>
    [...new Set(shown.flatMap((line) => line.points.filter(inside).map((p) => p.x)))].sort((a, b) => a - b);
  const closest = (event) => {
    const px = event.clientX - svg.getBoundingClientRect().left;
    return grid().reduce((a, b) => (a === null || Math.abs(x(b) - px) < Math.abs(x(a) - px) ? b : a), null);
  };
  const zoom = () => {
    const { from, at } = state;
    Object.assign(state, { from: null });
    if (from === null || at === null || Math.abs(x(at) - x(from)) < 8) return point();
    Object.assign(state, { zoom: [from, at].sort((a, b) => a - b), at: null });
    draw();
  };

  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    state.from = closest(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    state.at = closest(event);
    point();
  });
  svg.addEventListener("pointerup", zoom);
  svg.addEventListener("pointerleave", () => {
    if (state.from !== null) return;
    state.at = null;
    point();
  });
  svg.addEventListener("dblclick", () => set("zoom")(null));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") set("zoom")(null);
    else if (event.key === "Enter" && state.at !== null) {
      if (state.from === null) state.from = state.at;
      else zoom();
    } else if (step) {
      const places = grid();
      const next = state.at === null ? 0 : places.indexOf(state.at) + step;
      state.at = places[Math.max(0, Math.min(places.length - 1, next))] ?? null;
      event.preventDefault();
      point();
    }
  });
  new ResizeObserver(draw).observe(plot);
  draw();

  if (isFirst && !run.ticks) return; // it is among the curves below
  offer({
    ...{ run, place, title: () => `Curves: ${state.quantity.name}`, name: () => `${state.quantity.name} over ${state.axis}` },
    ...{ draw, svg: () => svg, latex: () => curvesLatex(shown, inside, state.log, axisName(), named()) },
    rows: () => [
      ["method", "round", state.axis, named(), "deviation", ...run.seeds.map((s) => `seed ${s}`)],
      ...shown.flatMap(({ method, points }) =>
        points.filter(inside).map((p) => [method.label, p.round, p.x, p.value?.mean, p.value?.spread, ...p.seeds]),
      ),
    ],
  });
}
