"use strict";
/* Draws the curves and the weights of each run into the places the page keeps for them.
   Text goes in as text nodes only, so that no label can become markup. */

const runs = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const ABSENT = 65535; // as in report.py
const HEADROOM = 3; // as in figures.py: higher lines than this many starts leave the panel
const PLOT = { height: 420, left: 64, right: 16, top: 12, bottom: 46 };

/* ------------------------------------------------------------------ elements */

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "rect", "circle"].includes(tag);
  const element = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function chooser(text, options, onchange) {
  const select = make(
    "select",
    { onchange: () => onchange(select.value) },
    ...options.map(([value, name]) => make("option", { value }, name)),
  );
  return make("label", {}, text, select);
}

function switches(text, group, options, onchange) {
  return make(
    "fieldset",
    { "aria-label": text },
    make("span", {}, text),
    ...options.map(([value, name], k) =>
      make(
        "label",
        {},
        make("input", {
          type: "radio",
          name: group,
          value,
          checked: k === 0,
          onchange: () => onchange(value),
        }),
        name,
      ),
    ),
  );
}

function slider(text, min, max, value, oninput) {
  const shown = make("output", {}, String(value));
  const input = make("input", { type: "range", min, max, value, "aria-label": text });
  input.addEventListener("input", () => {
    shown.textContent = input.value;
    oninput(Number(input.value));
  });
  return make("label", {}, text, input, shown);
}

function swatch(method) {
  return make(
    "svg",
    { class: `swatch ${method.colour}`, viewBox: "0 0 34 10", "aria-hidden": "true" },
    make("line", {
      x1: 0,
      y1: 5,
      x2: 34,
      y2: 5,
      "stroke-width": method.width,
      "stroke-dasharray": method.dash.join(" "),
    }),
  );
}

/* A tip to the side of the pointer where there is more room. */
function putBeside(tip, width, x, top) {
  const isRight = x > width / 2;
  tip.style.top = `${top}px`;
  tip.style.left = isRight ? "auto" : `${x + 14}px`;
  tip.style.right = isRight ? `${width - x + 14}px` : "auto";
}

/* ------------------------------------------------------------------ numbers */

const raised = (power) =>
  String(power).replace(/[-0-9]/g, (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));

function show(value, digits = 4) {
  if (value === null || !Number.isFinite(value)) return "—";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) {
    const [front, power] = value.toExponential(digits - 1).split("e");
    const short = String(Number(front));
    return (short === "1" ? "" : `${short}×`) + `10${raised(Number(power))}`;
  }
  return String(Number(value.toPrecision(digits)));
}

/* Mean and standard deviation over seeds; nothing where a seed has no value. */
function statistics(seeds) {
  return seeds[0].map((_, k) => {
    const values = seeds.map((row) => row[k]);
    if (values.includes(null)) return null;
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const squares = values.reduce((a, b) => a + (b - mean) ** 2, 0);
    return {
      mean,
      spread: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0,
    };
  });
}

function niceTicks(low, high, most) {
  const raw = (high - low) / most;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((k) => k * unit >= raw) * unit;
  const ticks = [];
  for (let k = Math.ceil(low / step); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const fronts = decades > 4 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 3, 5, 7];
  const every = Math.max(1, Math.ceil(decades / 10));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += every) {
    ticks.push(...fronts.map((front) => Number(`${front}e${power}`)));
  }
  return ticks.filter((tick) => tick >= low && tick <= high);
}

function scale(low, high, from, to, log = false) {
  const f = log ? Math.log10 : (v) => v;
  return (value) => from + ((f(value) - f(low)) / (f(high) - f(low) || 1)) * (to - from);
}

/* ------------------------------------------------------------------ curves */

function drawCurves(place, run, index) {
  const state = {
    quantity: run.quantities[0],
    axis: "rounds",
    log: run.quantities[0].log,
    spread: "band",
    from: 0,
    hidden: new Set(),
    at: null,
  };
  const set = (name) => (value) => {
    state[name] = value;
    state.at = null; // the cross-hair belongs to the old axis
    draw();
  };
  const svg = make("svg", {
    role: "img",
    tabindex: 0,
    "aria-label": "Curves; arrow keys move the cross-hair",
  });
  const tip = make("div", { class: "tip", role: "status", hidden: true });
  const plot = make("div", { class: "plot" }, svg, tip);
  const log = make("input", {
    type: "checkbox",
    checked: state.log,
    onchange: () => set("log")(log.checked),
  });
  const buttons = run.methods.map((method, k) =>
    make(
      "button",
      { type: "button", "aria-pressed": "true", onclick: () => toggle([k]) },
      swatch(method),
      method.label,
    ),
  );
  const all = make(
    "button",
    { class: "all", type: "button", onclick: () => toggle([...state.hidden]) },
    "show all",
  );
  const none = make(
    "button",
    {
      class: "all",
      type: "button",
      onclick: () => toggle([...run.methods.keys()].filter((k) => !state.hidden.has(k))),
    },
    "hide all",
  );
  const last = run.rounds[run.rounds.length - 1];
  place.append(
    make(
      "div",
      { class: "controls" },
      chooser(
        "quantity",
        run.quantities.map((q) => [q.key, q.name]),
        (key) => {
          state.quantity = run.quantities.find((q) => q.key === key);
          state.log = log.checked = state.quantity.log;
          draw();
        },
      ),
      switches(
        "over",
        `axis-${index}`,
        run.axes.map((a) => [a.key, a.name]),
        set("axis"),
      ),
      make("label", {}, log, "log scale"),
      chooser(
        "seeds",
        [
          ["band", "mean ± deviation"],
          ["seeds", "every seed"],
          ["none", "mean only"],
        ],
        set("spread"),
      ),
      slider("from round", 0, Math.max(0, last - 1), 0, set("from")),
    ),
    make("div", { class: "legend" }, ...buttons, all, none),
    plot,
  );

  let x, y, shown; // scales and what is drawn, for the pointer

  function toggle(which) {
    for (const k of which) state.hidden.has(k) ? state.hidden.delete(k) : state.hidden.add(k);
    buttons.forEach((button, k) =>
      button.setAttribute("aria-pressed", String(!state.hidden.has(k))),
    );
    draw();
  }

  function read(method) {
    const seeds = method.curves[state.quantity.key];
    const places = state.axis === "rounds" ? run.rounds : method[state.axis];
    const points = statistics(seeds).map((p, k) => ({
      x: places[k],
      round: run.rounds[k],
      value: p,
      seeds: seeds.map((row) => row[k]),
    }));
    return { method, points: points.filter((p) => p.round >= state.from) };
  }

  const fits = (value) => value !== null && Number.isFinite(value) && (!state.log || value > 0);

  function limits() {
    const values = shown
      .flatMap((line) => line.points.map((p) => p.value?.mean ?? null))
      .filter(fits);
    const starts = shown.map((line) => line.points[0]?.value?.mean ?? null).filter(fits);
    const top = Math.max(...starts) * HEADROOM;
    const kept = top > 0 && !state.quantity.up ? values.filter((v) => v <= top) : values;
    if (!kept.length) return state.log ? [0.1, 1] : [0, 1];
    const [low, high] = [Math.min(...kept), Math.max(...kept)];
    if (state.log) {
      const m = (high / low) ** 0.04 || 1;
      return low === high ? [low / 2, high * 2] : [low / m, high * m];
    }
    const m = (high - low || Math.abs(high) || 1) * 0.04;
    return [low - m, high + m];
  }

  function path(points) {
    let text = "";
    let pen = "M";
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
    const below = (v) => (state.log ? Math.max(v, floor) : v);
    const upper = kept.map((p) => [p.x, p.value.mean + p.value.spread]);
    const lower = kept.map((p) => [p.x, below(p.value.mean - p.value.spread)]).reverse();
    return kept.length > 1 ? `${path([...upper, ...lower])}Z` : "";
  }

  function draw() {
    const width = Math.max(320, plot.clientWidth || 900);
    shown = run.methods.filter((_, k) => !state.hidden.has(k)).map(read);
    const everywhere = shown.flatMap((line) => line.points.map((p) => p.x));
    const [left, right] = everywhere.length
      ? [Math.min(...everywhere), Math.max(...everywhere)]
      : [0, 1];
    const [low, high] = limits();
    x = scale(left, right, PLOT.left, width - PLOT.right);
    y = scale(low, high, PLOT.height - PLOT.bottom, PLOT.top, state.log);
    const base = PLOT.height - PLOT.bottom;
    const [across, down] = [width - PLOT.left - PLOT.right, base - PLOT.top];
    // An inner svg cuts off what leaves the panel.
    const area = make("svg", {
      x: PLOT.left,
      y: PLOT.top,
      width: across,
      height: down,
      viewBox: `${PLOT.left} ${PLOT.top} ${across} ${down}`,
    });
    for (const { method, points } of shown) {
      const colour = method.colour;
      if (state.spread === "band")
        area.append(
          make("path", {
            class: `band ${colour}${method.width > 1.5 ? " wide" : ""}`,
            d: band(points, low / 10),
          }),
        );
      if (state.spread === "seeds") {
        for (const k of run.seeds.keys())
          area.append(
            make("path", {
              class: `curve seed ${colour}`,
              "stroke-width": 1,
              d: path(points.map((p) => [p.x, p.seeds[k]])),
            }),
          );
      }
      area.append(
        make("path", {
          class: `curve mean ${colour}`,
          "stroke-width": method.width,
          "stroke-dasharray": method.dash.join(" "),
          d: path(points.map((p) => [p.x, p.value?.mean ?? null])),
        }),
      );
    }
    svg.setAttribute("viewBox", `0 0 ${width} ${PLOT.height}`);
    svg.setAttribute("height", PLOT.height);
    const ticks = state.log ? logTicks(low, high) : niceTicks(low, high, 7);
    svg.replaceChildren(
      ...ticks.flatMap((v) => [
        make("line", {
          class: "grid",
          x1: PLOT.left,
          x2: width - PLOT.right,
          y1: y(v),
          y2: y(v),
        }),
        make("text", { x: PLOT.left - 8, y: y(v) + 4, "text-anchor": "end" }, show(v)),
      ]),
      ...niceTicks(left, right, Math.min(8, width / 90)).map((v) =>
        make("text", { x: x(v), y: base + 18, "text-anchor": "middle" }, show(v)),
      ),
      make("path", {
        class: "frame",
        d: `M${PLOT.left},${PLOT.top}V${base}H${width - PLOT.right}`,
      }),
      make(
        "text",
        {
          class: "name",
          x: (PLOT.left + width) / 2,
          y: PLOT.height - 8,
          "text-anchor": "middle",
        },
        run.axes.find((a) => a.key === state.axis).name,
      ),
      make(
        "text",
        {
          class: "name",
          x: 14,
          y: PLOT.height / 2 - 20,
          "text-anchor": "middle",
          transform: `rotate(-90 14 ${PLOT.height / 2 - 20})`,
        },
        state.quantity.name,
      ),
      area,
      make("g", { class: "pointer" }),
    );
    point();
  }

  /* The values of all methods at the round under the pointer. */
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
    if (!found.length) return;
    const sign = state.quantity.up ? -1 : 1;
    const rank = ({ p }) => (p.value ? sign * p.value.mean : Number.MAX_VALUE);
    found.sort((a, b) => rank(a) - rank(b));
    const px = x(state.at);
    layer.append(
      make("line", {
        class: "cross",
        x1: px,
        x2: px,
        y1: PLOT.top,
        y2: PLOT.height - PLOT.bottom,
      }),
    );
    for (const { method, p } of found) {
      const py = p.value && fits(p.value.mean) ? y(p.value.mean) : -1;
      if (py >= PLOT.top && py <= PLOT.height - PLOT.bottom)
        layer.append(
          make("circle", { class: `dot ${method.colour}`, cx: x(p.x), cy: py, r: 3 }),
        );
    }
    const axis =
      state.axis === "rounds" ? `round ${found[0].p.round}` : `${show(state.at)} scalars`;
    tip.replaceChildren(
      make("strong", {}, axis),
      make(
        "table",
        {},
        make(
          "tbody",
          {},
          ...found.map(({ method, p }) =>
            make(
              "tr",
              {},
              make("td", {}, swatch(method), method.label),
              make("td", {}, p.value ? show(p.value.mean, 5) : "diverged"),
              make(
                "td",
                {},
                p.value && run.seeds.length > 1 ? `± ${show(p.value.spread, 2)}` : "",
              ),
            ),
          ),
        ),
      ),
    );
    putBeside(tip, plot.clientWidth, px, PLOT.top);
  }

  const nearest = (points, at) =>
    points.reduce(
      (best, p) => (!best || Math.abs(p.x - at) < Math.abs(best.x - at) ? p : best),
      null,
    );
  const grid = () =>
    [...new Set(shown.flatMap((line) => line.points.map((p) => p.x)))].sort((a, b) => a - b);

  svg.addEventListener("pointermove", (event) => {
    const px = event.clientX - svg.getBoundingClientRect().left;
    const nearer = (a, b) => (Math.abs(x(b) - px) < Math.abs(x(a) - px) ? b : a);
    state.at = shown.length ? grid().reduce(nearer) : null;
    point();
  });
  svg.addEventListener("pointerleave", () => {
    state.at = null;
    point();
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") state.at = null;
    else if (step) {
      const places = grid();
      const next = state.at === null ? 0 : places.indexOf(state.at) + step;
      state.at = places[Math.max(0, Math.min(places.length - 1, next))] ?? null;
      event.preventDefault();
    } else return;
    point();
  });
  new ResizeObserver(draw).observe(plot);
  draw();
}

/* ------------------------------------------------------------------ weights */

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Uint16Array.from({ length: bytes.length / 2 }, (_, k) => view.getUint16(2 * k, true));
}

function drawWeights(place, run) {
  const data = run.weights;
  const n = data.n;
  const columns = data.rounds.length;
  const state = { method: 0, seed: 0, rows: "clients", column: columns - 1 };
  const canvas = make("canvas", { role: "img", "aria-label": "Weights by round" });
  const tip = make("div", { class: "tip", hidden: true });
  const map = make("div", { class: "map" }, canvas, tip);
  const bars = make("div", { class: "bars" });
  const words = make("p", { class: "note", role: "status" });
  const [left, bottom] = [58, 24];
  let view; // what is drawn, for the pointer
  const set = (name) => (value) => {
    state[name] = value;
    load();
  };
  const whole =
    columns === run.rounds[run.rounds.length - 1] && data.seeds.length === run.seeds.length;
  const thinned = whole ? "" : "Not every round and seed is kept in this page. ";
  place.append(
    make(
      "div",
      { class: "controls" },
      chooser(
        "method",
        run.methods.map((m, k) => [k, m.label]),
        set("method"),
      ),
      chooser(
        "seed",
        data.seeds.map((seed, k) => [k, String(seed)]),
        set("seed"),
      ),
      chooser(
        "rows",
        [
          ["clients", "clients"],
          ["horizons", "horizons"],
        ],
        set("rows"),
      ),
      make(
        "label",
        {},
        "round",
        make("input", {
          type: "range",
          min: 0,
          max: columns - 1,
          value: columns - 1,
          "aria-label": "round",
          oninput: (event) => {
            state.column = Number(event.target.value);
            draw();
          },
        }),
      ),
    ),
    make("div", { class: "pair" }, map, bars),
    words,
  );

  /* Rows of the map: clients in order of their horizon, or horizons. */
  function load() {
    const codes = unpack(data.codes[state.method][state.seed]);
    const horizons = unpack(data.horizons[state.seed]);
    const [low, width] = [data.low[state.method], data.width[state.method]];
    const weight = (t, i) =>
      codes[t * n + i] === ABSENT ? null : low + (codes[t * n + i] / 65534) * width;
    const horizon = (t, i) => horizons[t * n + i];
    const groups = [...new Set(horizons)].filter((h) => h > 0).sort((a, b) => a - b);
    const mass = (t, h) => {
      let sum = null;
      for (let i = 0; i < n; i++)
        if (horizon(t, i) === h && weight(t, i) !== null) sum = (sum ?? 0) + weight(t, i);
      return sum;
    };
    const clients = Array.from({ length: n }, (_, i) => i);
    const fixed = clients.every((i) =>
      data.rounds.every((_, t) => horizon(t, i) === horizon(0, i)),
    );
    let rows;
    if (state.rows === "horizons") {
      rows = groups.map((h) => ({
        name: `H = ${h}`,
        title: `H = ${h}`,
        at: (t) => mass(t, h),
      }));
    } else {
      const order = [...clients];
      if (fixed) order.sort((a, b) => horizon(0, a) - horizon(0, b) || a - b);
      rows = order.map((i, k) => {
        const first = fixed && (k === 0 || horizon(0, i) !== horizon(0, order[k - 1]));
        return {
          name: fixed ? (first ? `H = ${horizon(0, i)}` : "") : n <= 40 ? `${i}` : "",
          rule: first && k > 0,
          title: `client ${i}`,
          of: (t) => `, H = ${horizon(t, i)}`,
          at: (t) => weight(t, i),
        };
      });
    }
    const cells = rows.map((row) => data.rounds.map((_, t) => row.at(t)));
    const most = Math.max(
      ...cells.map((row) => Math.max(...row.map((w) => Math.abs(w ?? 0)))),
      1e-12,
    );
    view = { rows, cells, most, clients, groups, mass, weight, horizon };
    draw();
  }

  function draw() {
    const width = Math.max(280, map.clientWidth || 700);
    const [tallest, room] = state.rows === "horizons" ? [44, 260] : [18, 420];
    const cell = Math.max(1, Math.min(tallest, room / view.rows.length));
    const height = cell * view.rows.length;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = (height + bottom) * ratio;
    canvas.style.height = `${height + bottom}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const method = run.methods[state.method];
    const colours = getComputedStyle(place);
    const probe = make("span", { class: method.colour });
    place.append(probe);
    const ink = getComputedStyle(probe).getPropertyValue("--ink");
    probe.remove();
    const across = (width - left) / columns;
    view.geometry = { across, cell, height };
    pen.fillStyle = colours.getPropertyValue("--paper");
    pen.fillRect(left, 0, width - left, height);
    view.cells.forEach((row, r) =>
      row.forEach((w, t) => {
        // The root keeps small weights visible.
        pen.globalAlpha = w === null ? 0.35 : Math.sqrt(Math.abs(w) / view.most);
        pen.fillStyle = w === null ? colours.getPropertyValue("--rule") : ink;
        pen.fillRect(left + t * across, r * cell, Math.ceil(across), Math.ceil(cell));
      }),
    );
    pen.globalAlpha = 1;
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = colours.getPropertyValue("--faint");
    pen.strokeStyle = colours.getPropertyValue("--faint");
    pen.textAlign = "right";
    pen.textBaseline = "top";
    view.rows.forEach((row, r) => {
      if (row.name) pen.fillText(row.name, left - 6, r * cell + Math.max(0, (cell - 13) / 2));
      if (row.rule) {
        pen.globalAlpha = 0.6;
        pen.beginPath();
        pen.moveTo(left, r * cell);
        pen.lineTo(width, r * cell);
        pen.stroke();
        pen.globalAlpha = 1;
      }
    });
    pen.textAlign = "center";
    for (const round of niceTicks(data.rounds[0], data.rounds[columns - 1], 8)) {
      const t = data.rounds.indexOf(round);
      if (t >= 0) pen.fillText(String(round), left + (t + 0.5) * across, height + 7);
    }
    pen.strokeStyle = colours.getPropertyValue("--text");
    pen.lineWidth = 1.5;
    pen.strokeRect(left + state.column * across, 0.75, Math.max(across, 2), height - 1.5);
    drawBars(method);
  }

  /* The chosen round: weight of each horizon, and what equal weights would give. */
  function drawBars(method) {
    const t = state.column;
    const round = data.rounds[t];
    const clients = view.clients.filter((i) => view.weight(t, i) !== null);
    const values = view.groups.map((h) => [
      h,
      view.mass(t, h) ?? 0,
      clients.filter((i) => view.horizon(t, i) === h).length / (clients.length || 1),
    ]);
    const high = Math.max(...values.flatMap(([, w, share]) => [w, share]), 1e-12);
    const [width, height, base, side] = [300, 230, 190, 34];
    const y = scale(0, high, base, 24);
    const step = (width - side) / Math.max(1, values.length);
    bars.replaceChildren(
      make(
        "svg",
        {
          class: method.colour,
          viewBox: `0 0 ${width} ${height}`,
          role: "img",
          "aria-label": `weight by horizon in round ${round}`,
        },
        make("text", { class: "name", x: side, y: 12 }, `round ${round}: weight by horizon`),
        ...niceTicks(0, high, 4).flatMap((v) => [
          make("line", { class: "grid", x1: side, x2: width, y1: y(v), y2: y(v) }),
          make("text", { x: side - 5, y: y(v) + 4, "text-anchor": "end" }, show(v, 2)),
        ]),
        ...values.flatMap(([h, w, share], k) => [
          make("rect", {
            x: side + (k + 0.18) * step,
            width: 0.64 * step,
            y: Math.min(y(w), base),
            height: Math.abs(base - y(w)),
          }),
          make("line", {
            class: "equal",
            x1: side + (k + 0.1) * step,
            x2: side + (k + 0.9) * step,
            y1: y(share),
            y2: y(share),
          }),
          make(
            "text",
            { x: side + (k + 0.5) * step, y: base + 16, "text-anchor": "middle" },
            String(h),
          ),
        ]),
        make(
          "text",
          {
            class: "name",
            x: (width + side) / 2,
            y: height - 6,
            "text-anchor": "middle",
          },
          "local steps H (mark: equal weights)",
        ),
      ),
    );
    const own = clients.map((i) => view.weight(t, i));
    const carried = own.filter((w) => Math.abs(w) > 1e-4).length;
    const sum = own.reduce((a, b) => a + b, 0);
    const found = own.length
      ? `${carried} of ${own.length} clients carry weight; the largest is ` +
        `${show(Math.max(...own), 3)}, the sum ${show(sum, 3)}.`
      : "no client was heard.";
    const where = `${method.label}, seed ${data.seeds[state.seed]}, round ${round}`;
    words.textContent = `${thinned}${where}: ${found}`;
  }

  function under(event) {
    const box = canvas.getBoundingClientRect();
    const { across, cell, height } = view.geometry;
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const [t, r] = [Math.floor((px - left) / across), Math.floor(py / cell)];
    return px >= left && py < height && t < columns && view.rows[r] ? { t, r, px, py } : null;
  }

  canvas.addEventListener("pointermove", (event) => {
    const at = under(event);
    tip.hidden = !at;
    if (!at) return;
    const row = view.rows[at.r];
    const w = view.cells[at.r][at.t];
    const who = row.title + (row.of && w !== null ? row.of(at.t) : "");
    const said = w === null ? "not heard" : show(w, 3);
    tip.textContent = `round ${data.rounds[at.t]}, ${who}: ${said}`;
    putBeside(tip, map.clientWidth, at.px, at.py + 14);
  });
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
  });
  canvas.addEventListener("click", (event) => {
    const at = under(event);
    if (!at) return;
    state.column = at.t;
    place.querySelector("input[type=range]").value = at.t;
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(draw).observe(map);
  load();
}

/* ------------------------------------------------------------------ start */

for (const place of document.querySelectorAll(".view")) {
  const index = Number(place.dataset.run);
  place.hidden = false;
  if (place.dataset.view === "curves") drawCurves(place, runs[index], index);
  else drawWeights(place, runs[index]);
}
