/* Curves of a run: methods shown and hidden, differences, zoom by brush or keys. */

const HEADROOM = 3; // as in curves.py: higher lines than this many starts leave the panel
const WARM_UP = 0.2; // as in curves.py: share of the rounds that need not fit in
const FENCE = 3; // as in curves.py: lines that end so far behind leave the panel
const HEIGHT = 430;

function drawCurves(place, run) {
  const state = {
    ...{ quantity: run.quantities[0], axis: run.axes[0].key, log: run.quantities[0].log },
    ...{ spread: "leaders", minus: "", hidden: new Set(), focus: null },
    ...{ at: null, zoom: null, whole: false, from: null },
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
  const set = (name) => (value) => {
    Object.assign(state, { [name]: value, at: null, from: null });
    if (["axis", "minus", "quantity"].includes(name)) state.zoom = null;
    draw();
  };
  const log = checkbox("log scale", state.log, set("log"));
  const buttons = run.methods.map((method, k) =>
    make(
      "button",
      {
        ...{ type: "button", "aria-pressed": "true", onclick: () => toggle([k]) },
        ...{ onpointerenter: () => look(k), onpointerleave: () => look(null) },
        ...{ onfocus: () => look(k), onblur: () => look(null) },
      },
      swatch(method),
      method.label,
    ),
  );
  const every = () => [...run.methods.keys()];
  const reset = button("whole range", () => {
    Object.assign(state, { zoom: null, whole: !state.whole || !!state.zoom, from: null });
    draw();
  });
  place.append(
    make(
      "div",
      { class: "controls" },
      chooser(
        "quantity",
        run.quantities.map((q) => [q.key, q.name]),
        (key) => {
          const quantity = run.quantities.find((q) => q.key === key);
          state.log = log.firstChild.checked = quantity.log;
          set("quantity")(quantity);
        },
      ),
      chooser(
        "over",
        run.axes.map((a) => [a.key, a.name]),
        set("axis"),
      ),
      chooser(
        "minus",
        [["", "nothing"], ...run.methods.map((m, k) => [String(k), m.label])],
        set("minus"),
      ),
      chooser(
        "show",
        [
          ["leaders", "bands of the leaders"],
          ["band", "all bands (± deviation)"],
          ["seeds", "every seed"],
          ["none", "means only"],
        ],
        set("spread"),
      ),
      log,
      reset,
    ),
    make(
      "div",
      { class: "legend" },
      ...buttons,
      button("show all", () => toggle([...state.hidden]), { class: "all" }),
      button("hide all", () => toggle(every().filter((k) => !state.hidden.has(k))), {
        class: "all",
      }),
    ),
    plot,
    outside,
  );

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

  function read(k) {
    const method = run.methods[k];
    const { key } = state.quantity;
    const base = state.minus === "" ? null : run.methods[state.minus].curves[key];
    const less = (v, s, t) => (v === null || base[s][t] === null ? null : v - base[s][t]);
    const rows = method.curves[key].map((row, s) => (base ? row.map((v, t) => less(v, s, t)) : row));
    const points = run.rounds.map((round, t) => {
      const seeds = rows.map((row) => row[t]);
      return { x: method.at[state.axis][t], round, seeds, value: statistics(seeds) };
    });
    return { k, method, points, leads: state.quantity.leaders.includes(method.label) };
  }

  const isLog = () => state.log && state.minus === "";
  const fits = (value) => value !== null && Number.isFinite(value) && (!isLog() || value > 0);
  const inside = (p) => !state.zoom || (p.x >= state.zoom.x[0] && p.x <= state.zoom.x[1]);
  const means = (points) => points.map((p) => p.value?.mean ?? null).filter(fits);

  /* What differs fits in; what diverged or is far behind does not. */
  function limits() {
    if (state.zoom?.y) return state.zoom.y;
    const free = state.whole || state.zoom;
    const late = free ? 0 : WARM_UP * run.rounds[run.rounds.length - 1];
    let lines = shown.map(({ points, leads }) => ({
      ...{ leads, values: means(points.filter((p) => inside(p) && p.round >= late)) },
    }));
    lines = lines.filter((line) => line.values.length);
    const sign = state.quantity.up ? -1 : 1;
    const worth = (v) => sign * (isLog() ? Math.log(v) : v);
    const ends = lines.map((line) => worth(line.values[line.values.length - 1]));
    if (!free && lines.length > 5) {
      const middle = quantile(ends, 0.5);
      const most = middle + FENCE * Math.max(quantile(ends, 0.75) - middle, 1e-3);
      lines = lines.filter((line, k) => line.leads || ends[k] <= most);
    }
    let values = lines.flatMap((line) => line.values);
    const start = Math.max(...shown.flatMap((line) => means(line.points.slice(0, 1))));
    if (start > 0 && sign > 0 && state.minus === "" && !free)
      values = values.filter((v) => v <= HEADROOM * start);
    if (!values.length) return isLog() ? [0.1, 1] : [0, 1];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    if (isLog()) {
      const m = (high / low) ** 0.04;
      return low === high ? [low / 2, high * 2] : [low / m, high * m];
    }
    const m = (high - low || Math.abs(high) || 1) * 0.04;
    return [low - m, high + m];
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
    // A band may reach below zero, which a logarithm cannot show.
    const below = (v) => (isLog() ? Math.max(v, floor) : v);
    const upper = kept.map((p) => [p.x, p.value.mean + p.value.spread]);
    const lower = kept.map((p) => [p.x, below(p.value.mean - p.value.spread)]).reverse();
    return kept.length > 1 ? `${path([...upper, ...lower])}Z` : "";
  }

  function drawLine(area, { k, method, points, leads }, low) {
    const look = { "data-method": k };
    if (state.spread === "band" || (state.spread === "leaders" && leads))
      area.append(
        make("path", {
          ...{ ...look, class: `band ${method.colour}${leads ? " wide" : ""}` },
          d: band(points, low / 10),
        }),
      );
    if (state.spread === "seeds")
      for (const s of run.seeds.keys())
        area.append(
          make("path", {
            ...{ ...look, class: `curve seed ${method.colour}`, "stroke-width": 1 },
            d: path(points.map((p) => [p.x, p.seeds[s]])),
          }),
        );
    area.append(
      make("path", {
        ...{ ...look, class: `curve mean ${method.colour}` },
        "stroke-width": leads ? Math.max(2, method.width) : 1.1,
        "stroke-dasharray": method.dash.join(" ") || "none",
        d: path(points.map((p) => [p.x, p.value?.mean ?? null])),
      }),
    );
    const seen = points.filter((p) => p.value && fits(p.value.mean) && inside(p));
    const gap = Math.max(1, Math.floor(seen.length / 8));
    if (method.marker)
      for (const p of seen.filter((_, t) => t % gap === Math.floor(gap / 2))) {
        const found = mark(method.marker, method.colour, x(p.x), y(p.value.mean));
        found.dataset.method = k;
        area.append(found);
      }
  }

  /* Names at the ends of lines; where they do not all fit, those of the best. */
  function nameEnds() {
    const step = 13;
    const [top, base] = [box.top + 4, box.height - box.bottom - 2];
    const ends = shown.flatMap(({ k, method, points, leads }) => {
      const seen = points.filter((p) => p.value && fits(p.value.mean) && inside(p));
      const last = seen[seen.length - 1];
      const at = last ? y(last.value.mean) : -1;
      return at >= top - 6 && at <= base + 6 ? [{ k, method, leads, x: x(last.x), y: at }] : [];
    });
    const order = state.quantity.up ? 1 : -1;
    ends.sort((a, b) => b.leads - a.leads || -order * (b.y - a.y));
    const most = Math.floor((base - top) / step);
    for (const end of spreadOut(ends.slice(0, most), top, base, step)) {
      const left = box.width - box.right + 14;
      const text = end.method.label;
      const short = text.length > 26 ? `${text.slice(0, 25)}…` : text;
      svg.append(
        make("path", {
          ...{ class: `leader ${end.method.colour}`, "data-method": end.k },
          d: `M${end.x + 2},${end.y}L${left - 3},${end.at}`,
        }),
        make(
          "text",
          {
            ...{ class: `end ${end.method.colour}`, x: left, y: end.at + 4 },
            ...{ "data-method": end.k, "font-weight": end.leads ? 700 : 400 },
          },
          short,
        ),
      );
    }
  }

  function draw() {
    const width = Math.max(250, plot.clientWidth || 900);
    shown = every()
      .filter((k) => !state.hidden.has(k))
      .map(read);
    const wide = width >= 640;
    const longest = Math.max(0, ...shown.map(({ method }) => Math.min(26, method.label.length)));
    const right = wide ? 24 + 6.7 * longest : 12;
    box = { width, height: wide ? HEIGHT : 320, left: 58, right, top: 10, bottom: 44 };
    const xs = shown.flatMap((line) => line.points.map((p) => p.x)).filter(Number.isFinite);
    const [first, last] = state.zoom?.x ?? (xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1]);
    const [low, high] = limits();
    x = scale(first, last, box.left, width - right);
    y = scale(low, high, box.height - box.bottom, box.top, isLog());
    const ticks = isLog() ? logTicks(low, high) : niceTicks(low, high, 7);
    const name = state.quantity.name;
    const minus = state.minus === "" ? "" : ` minus that of ${run.methods[state.minus].label}`;
    const area = panel(
      svg,
      box,
      {
        ticks: niceTicks(first, last, Math.min(8, width / 90)).map((v) => [x(v), show(v)]),
        name: run.axes.find((a) => a.key === state.axis).name,
      },
      { ticks: ticks.map((v) => [y(v), show(v)]), name: `${name}${minus}` },
    );
    if (minus && low < 0 && high > 0)
      area.append(
        make("line", { class: "zero", x1: box.left, x2: width, y1: y(0), y2: y(0) }),
      );
    for (const line of [...shown].sort((a, b) => a.leads - b.leads)) drawLine(area, line, low);
    if (wide) nameEnds();
    svg.append(make("g", { class: "pointer" }));
    const lost = shown.filter(
      ({ points }) => !points.some((p) => p.value && inside(p) && p.value.mean >= low && p.value.mean <= high),
    );
    const names = lost.map(({ method }) => method.label).join(", ");
    outside.textContent = names
      ? `Outside the panel, which shows what differs between the others: ${names}.`
      : "";
    const zoomed = !!state.zoom;
    reset.textContent = zoomed || !state.whole ? "whole range" : "what differs";
    reset.setAttribute("aria-pressed", String(zoomed || state.whole));
    if (state.focus !== null) look(state.focus);
    point();
  }

  /* The values of all methods at the place under the cross-hair. */
  function point() {
    const layer = svg.querySelector(".pointer");
    const found =
      state.at === null
        ? []
        : shown
            .map(({ method, points }) => ({ method, p: nearest(points, state.at) }))
            .filter(({ p }) => p);
    tip.hidden = found.length === 0;
    layer.replaceChildren();
    const [top, base] = [box.top, box.height - box.bottom];
    if (state.from) {
      const to = state.to ?? { x: x(state.at ?? state.from.value), y: null };
      const [a, b] = [state.from.x, to.x].sort((p, q) => p - q);
      const tall = state.to && Math.abs(to.y - state.from.y) > 24;
      const [c, d] = tall ? [state.from.y, to.y].sort((p, q) => p - q) : [top, base];
      layer.append(
        make("rect", { class: "brush", x: a, y: c, width: b - a, height: d - c }),
      );
    }
    if (!found.length) return;
    const sign = state.quantity.up ? -1 : 1;
    const rank = ({ p }) => (p.value ? sign * p.value.mean : Number.MAX_VALUE);
    found.sort((a, b) => rank(a) - rank(b));
    const px = x(state.at);
    layer.append(make("line", { class: "cross", x1: px, x2: px, y1: top, y2: base }));
    for (const { method, p } of found) {
      const py = p.value && fits(p.value.mean) ? y(p.value.mean) : -1;
      if (py >= top && py <= base)
        layer.append(make("circle", { class: `dot ${method.colour}`, cx: x(p.x), cy: py, r: 3 }));
    }
    const unit = run.axes.find((a) => a.key === state.axis).name;
    const axis = state.axis === "rounds" ? `round ${found[0].p.round}` : `${show(state.at)} ${unit}`;
    const most = box.width < 640 ? 8 : 24;
    const rows = found.slice(0, most).map(({ method, p }) =>
      make(
        "tr",
        {},
        make("td", {}, swatch(method), method.label),
        make("td", {}, p.value ? show(p.value.mean, 5) : "diverged"),
        make("td", {}, p.value && run.seeds.length > 1 ? `± ${show(p.value.spread, 2)}` : ""),
      ),
    );
    const rest = found.length > most ? [make("small", {}, `${found.length - most} more`)] : [];
    tip.replaceChildren(
      make("strong", {}, axis),
      make("table", {}, make("tbody", {}, ...rows)),
      ...rest,
    );
    putBeside(tip, plot.clientWidth, px, top);
  }

  const nearest = (points, at) =>
    points.reduce(
      (best, p) => (!best || Math.abs(p.x - at) < Math.abs(best.x - at) ? p : best),
      null,
    );
  const grid = () =>
    [...new Set(shown.flatMap((line) => line.points.filter(inside).map((p) => p.x)))].sort(
      (a, b) => a - b,
    );
  const where = (event) => {
    const frame = svg.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  };
  const closest = (px) => {
    const nearer = (a, b) => (Math.abs(x(b) - px) < Math.abs(x(a) - px) ? b : a);
    const places = grid();
    return places.length ? places.reduce(nearer) : null;
  };
  const zoomTo = (a, b, c = null, d = null) => {
    const xs = [x.back(a), x.back(b)].sort((p, q) => p - q);
    const ys = c === null ? null : [y.back(c), y.back(d)].sort((p, q) => p - q);
    Object.assign(state, { zoom: { x: xs, y: ys }, from: null, to: null, at: null });
    draw();
  };

  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    state.from = where(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    const at = where(event);
    if (state.from && event.buttons) state.to = at;
    state.at = closest(at.x);
    point();
  });
  svg.addEventListener("pointerup", () => {
    const { from, to } = state;
    Object.assign(state, { from: null, to: null });
    if (!from || !to || Math.abs(to.x - from.x) < 8) return point();
    const tall = Math.abs(to.y - from.y) > 24;
    zoomTo(from.x, to.x, ...(tall ? [from.y, to.y] : []));
  });
  svg.addEventListener("pointercancel", () => Object.assign(state, { from: null, to: null }));
  svg.addEventListener("dblclick", () => {
    Object.assign(state, { zoom: null, from: null });
    draw();
  });
  svg.addEventListener("pointerleave", () => {
    if (state.to) return;
    state.at = null;
    point();
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") {
      Object.assign(state, { at: null, from: null, zoom: null });
      draw();
    } else if (event.key === "Enter" && state.at !== null) {
      if (state.from && Math.abs(x(state.at) - state.from.x) > 1) zoomTo(state.from.x, x(state.at));
      else state.from = { x: x(state.at), value: state.at };
    } else if (step) {
      const places = grid();
      const next = state.at === null ? 0 : places.indexOf(state.at) + step;
      state.at = places[Math.max(0, Math.min(places.length - 1, next))] ?? null;
      event.preventDefault();
    } else return;
    point();
  });
  new ResizeObserver(draw).observe(plot);
  draw();

  const named = () => `${state.quantity.name} over ${state.axis}`;
  place.append(
    exporter({
      name: () => `${run.name} ${named()}`,
      draw,
      svg: () => svg,
      rows: () => [
        ["method", "round", state.axis, "mean", "deviation", ...run.seeds.map((s) => `seed ${s}`)],
        ...shown.flatMap(({ method, points }) =>
          points
            .filter(inside)
            .map((p) => [method.label, p.round, p.x, p.value?.mean, p.value?.spread, ...p.seeds]),
        ),
      ],
      latex: () => curvesLatex(run, state, shown, inside, isLog()),
    }),
  );
}
