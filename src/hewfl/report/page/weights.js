/* Weights of a run: a map over rounds with its key, and one round by horizon. */

const ABSENT = 65535; // as in page_data.py
const BARS = 10; // horizons with a bar of their own; of more, neighbours share one

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Uint16Array.from({ length: bytes.length / 2 }, (_, k) => view.getUint16(2 * k, true));
}

/* The colour of a name on the current paper, as [red, green, blue]. */
function inkOf(place, colour) {
  const probe = make("span", { class: colour });
  place.append(probe);
  const hex = getComputedStyle(probe).getPropertyValue("--ink").trim();
  probe.remove();
  return [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
}

/* An image of one pixel per cell; null is a client that did not take part. */
function cellImage(cells, paint) {
  const [tall, wide] = [cells.length, cells[0].length];
  const canvas = make("canvas", { width: wide, height: tall });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(wide, tall);
  cells.forEach((row, r) =>
    row.forEach((w, t) => image.data.set(paint(w), 4 * (r * wide + t))),
  );
  pen.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function drawWeights(place, run) {
  const data = run.weights;
  const [n, columns] = [data.n, data.rounds.length];
  const state = { method: 0, seed: 0, rows: "clients", column: columns - 1 };
  const svg = make("svg", { class: "chart", role: "img", "aria-label": "Weights by round" });
  const tip = make("div", { class: "tip", hidden: true });
  const map = make("div", { class: "map plot" }, svg, tip);
  const bars = make("svg", { class: "chart", role: "img" });
  const words = make("p", { class: "note", role: "status" });
  let view; // what is drawn, for the pointer
  const set = (name) => (value) => {
    state[name] = value;
    load();
  };
  const whole =
    columns === run.rounds[run.rounds.length - 1] && data.seeds.length === run.seeds.length;
  const thinned = whole ? "" : "Not every round and seed is kept in this page. ";
  const slider = make("input", {
    ...{ type: "range", min: 0, max: columns - 1, value: columns - 1 },
    oninput: () => {
      state.column = Number(slider.value);
      draw();
    },
  });
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
      make("label", {}, "round", slider),
    ),
    make("div", { class: "pair" }, map, make("div", { class: "bars plot" }, bars)),
    words,
  );

  /* Horizons in at most so many groups of neighbours. */
  function grouped(horizons, most) {
    const size = Math.ceil(horizons.length / most);
    const parts = [];
    for (let k = 0; k < horizons.length; k += size) parts.push(horizons.slice(k, k + size));
    const name = (p) => (p.length > 1 ? `${p[0]}–${p[p.length - 1]}` : `${p[0]}`);
    return parts.map((part) => ({ name: name(part), has: new Set(part) }));
  }

  /* Rows of the map: clients in order of their horizon, or horizons. */
  function load() {
    const codes = unpack(data.codes[state.method][state.seed]);
    const horizons = unpack(data.horizons[state.seed]);
    const [low, width] = [data.low[state.method], data.width[state.method]];
    const weight = (t, i) =>
      codes[t * n + i] === ABSENT ? null : low + (codes[t * n + i] / 65534) * width;
    const horizon = (t, i) => horizons[t * n + i];
    const found = [...new Set(horizons)].filter((h) => h > 0).sort((a, b) => a - b);
    const clients = Array.from({ length: n }, (_, i) => i);
    const mass = (t, group) => {
      const own = clients.filter((i) => group.has.has(horizon(t, i)) && weight(t, i) !== null);
      return own.length ? own.reduce((sum, i) => sum + weight(t, i), 0) : null;
    };
    const fixed = clients.every((i) =>
      data.rounds.every((_, t) => horizon(t, i) === horizon(0, i)),
    );
    let rows;
    if (state.rows === "horizons") {
      rows = grouped(found, 20).map((group) => ({
        ...{ name: `H = ${group.name}`, title: `H = ${group.name}`, at: (t) => mass(t, group) },
      }));
    } else {
      const order = [...clients];
      if (fixed) order.sort((a, b) => horizon(0, a) - horizon(0, b) || a - b);
      rows = order.map((i, k) => {
        const first = fixed && (k === 0 || horizon(0, i) !== horizon(0, order[k - 1]));
        return {
          name: fixed ? (first ? `H = ${horizon(0, i)}` : "") : `${i}`,
          title: `client ${i}`,
          of: (t) => `, H = ${horizon(t, i)}`,
          at: (t) => weight(t, i),
        };
      });
    }
    const cells = rows.map((row) => data.rounds.map((_, t) => row.at(t)));
    const most = Math.max(...cells.flat().map((w) => Math.abs(w ?? 0)), 1e-12);
    const least = Math.min(0, ...cells.flat().map((w) => w ?? 0));
    view = { rows, cells, most, least, clients, groups: grouped(found, BARS), mass, weight, horizon };
    draw();
  }

  function draw() {
    const width = Math.max(240, map.clientWidth || 700);
    const method = run.methods[state.method];
    const [tallest, room] = state.rows === "horizons" ? [44, 260] : [18, 420];
    const cell = Math.max(1, Math.min(tallest, room / view.rows.length));
    const tall = cell * view.rows.length;
    const box = { width, height: tall + 92, left: 66, right: 8, top: 6, bottom: 86 };
    const across = (width - box.left - box.right) / columns;
    view.geometry = { across, cell, tall, box };
    let free = -Infinity;
    const names = view.rows.flatMap((row, r) => {
      const at = box.top + (r + 0.5) * cell;
      if (!row.name || at - free < 13) return [];
      free = at;
      return [[at, row.name]];
    });
    const rounds = niceTicks(data.rounds[0], data.rounds[columns - 1], 8)
      .map((round) => [data.rounds.indexOf(round), String(round)])
      .filter(([t]) => t >= 0)
      .map(([t, text]) => [box.left + (t + 0.5) * across, text]);
    const area = panel(svg, box, { ticks: rounds, name: "" }, { ticks: names, plain: true });
    const ink = inkOf(place, method.colour);
    const minus = inkOf(place, "grey");
    // The root keeps small weights visible; a client that did not take part has a thin veil.
    const paint = (w) =>
      w === null
        ? [...minus, 40]
        : [...(w < 0 ? minus : ink), Math.round(255 * Math.sqrt(Math.abs(w) / view.most))];
    area.append(
      make("image", {
        ...{ x: box.left, y: box.top, width: across * columns, height: tall },
        ...{ preserveAspectRatio: "none", "image-rendering": "pixelated" },
        href: cellImage(view.cells, paint),
      }),
      make("rect", {
        ...{ class: "chosen", x: box.left + state.column * across, y: box.top + 0.75 },
        ...{ width: Math.max(across, 2), height: tall - 1.5 },
      }),
    );
    drawKey(box, paint);
    drawBars(method);
  }

  /* The key of the map: which shade is which weight. */
  function drawKey(box, paint) {
    const [least, steps] = [view.least < 0 ? -view.most : 0, 64];
    const ramp = Array.from({ length: steps }, (_, k) => least + ((view.most - least) * k) / (steps - 1));
    const [top, wide] = [box.height - 40, Math.min(260, box.width - box.left - box.right)];
    const at = scale(least, view.most, box.left, box.left + wide);
    const shown = [...niceTicks(least, 0.88 * view.most, 4), view.most];
    const ticks = shown.map((v) => [at(v), show(v, 3)]);
    svg.append(
      make("text", { class: "name", x: (box.left + box.width) / 2, y: top - 12, "text-anchor": "middle" }, "round"),
      make("text", { class: "name", x: box.left - 6, y: top + 10, "text-anchor": "end" }, "weight"),
      make("image", {
        ...{ x: box.left, y: top, width: wide, height: 12, preserveAspectRatio: "none" },
        href: cellImage([ramp], paint),
      }),
      make("rect", { class: "keyframe", x: box.left, y: top, width: wide, height: 12 }),
      ...apart(ticks).map(([px, text]) =>
        make("text", { x: px, y: top + 27, "text-anchor": "middle" }, text),
      ),
    );
  }

  /* The chosen round: weight of each horizon, and what equal weights would give. */
  function drawBars(method) {
    const [t, round] = [state.column, data.rounds[state.column]];
    const clients = view.clients.filter((i) => view.weight(t, i) !== null);
    const values = view.groups.map((group) => [
      group.name,
      view.mass(t, group) ?? 0,
      clients.filter((i) => group.has.has(view.horizon(t, i))).length / (clients.length || 1),
    ]);
    const all = values.flatMap(([, w, share]) => [w, share]);
    const [low, high] = [Math.min(0, ...all), Math.max(...all, 1e-12)];
    const width = Math.max(240, bars.parentNode.clientWidth || 300);
    const box = { width, height: 250, left: 52, right: 6, top: 26, bottom: 44 };
    const y = scale(low, high, box.height - box.bottom, box.top);
    const step = (width - box.left - box.right) / Math.max(1, values.length);
    const at = (k) => box.left + (k + 0.5) * step;
    bars.setAttribute("aria-label", `weight by horizon in round ${round}`);
    const area = panel(
      bars,
      box,
      {
        ticks: values.map(([name], k) => [at(k), name]),
        name: "local steps H (mark: equal weights)",
      },
      { ticks: niceTicks(low, high, 4).map((v) => [y(v), show(v, 2)]), name: "weight" },
    );
    values.forEach(([, w, share], k) =>
      area.append(
        make("rect", {
          ...{ class: `bar ${method.colour}`, x: at(k) - 0.32 * step, width: 0.64 * step },
          ...{ y: Math.min(y(w), y(0)), height: Math.abs(y(0) - y(w)) },
        }),
        make("line", {
          ...{ class: "equal", x1: at(k) - 0.4 * step, x2: at(k) + 0.4 * step },
          ...{ y1: y(share), y2: y(share) },
        }),
      ),
    );
    bars.append(
      make("text", { class: "name", x: box.left, y: 14 }, `round ${round}: weight by horizon`),
    );
    view.bars = values;
    const own = clients.map((i) => view.weight(t, i));
    const carried = own.filter((w) => Math.abs(w) > 1e-4).length;
    const sum = own.reduce((a, b) => a + b, 0);
    const step_ = Math.abs(sum - 1) < 1e-3 ? "a weighted mean of the displacements" : "";
    const longer = `a step ${show(sum, 3)} times as long as a weighted mean of the displacements`;
    const found = own.length
      ? `${carried} of ${own.length} clients carry weight; the largest is ` +
        `${show(Math.max(...own), 3)}, the sum ${show(sum, 3)}: ${step_ || longer}.`
      : "no client took part.";
    const where = `${method.label}, seed ${data.seeds[state.seed]}, round ${round}`;
    words.textContent = `${thinned}${where}: ${found}`;
  }

  function under(event) {
    const frame = svg.getBoundingClientRect();
    const { across, cell, tall, box } = view.geometry;
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    const [t, r] = [Math.floor((px - box.left) / across), Math.floor((py - box.top) / cell)];
    const isIn = px >= box.left && py >= box.top && py < box.top + tall && t < columns;
    return isIn && view.rows[r] ? { t, r, px, py } : null;
  }

  svg.addEventListener("pointermove", (event) => {
    const at = under(event);
    tip.hidden = !at;
    if (!at) return;
    const row = view.rows[at.r];
    const w = view.cells[at.r][at.t];
    const who = row.title + (row.of && w !== null ? row.of(at.t) : "");
    const said = w === null ? "did not take part" : show(w, 3);
    tip.textContent = `round ${data.rounds[at.t]}, ${who}: ${said}`;
    putBeside(tip, map.clientWidth, at.px, at.py + 14);
  });
  svg.addEventListener("pointerleave", () => {
    tip.hidden = true;
  });
  svg.addEventListener("click", (event) => {
    const at = under(event);
    if (!at) return;
    slider.value = state.column = at.t;
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(draw).observe(map);
  load();

  const named = () => `${run.name} weights of ${run.methods[state.method].label}`;
  const cells = () =>
    view.rows.flatMap((row, r) =>
      data.rounds.map((round, t) => [row.title, round, view.cells[r][t]]),
    );
  map.append(
    exporter({
      ...{ name: named, draw, svg: () => svg, latex: () => mapLatex(view, data.rounds) },
      rows: () => [["row", "round", "weight"], ...cells()],
    }),
  );
  bars.parentNode.append(
    exporter({
      ...{ name: () => `${named()} by horizon`, draw, svg: () => bars },
      rows: () => [["horizon", "weight", "equal weights"], ...view.bars],
      latex: () => barsLatex(view.bars),
    }),
  );
}
