/* Weights of two methods, clients by rounds, beside each other: bad clients on top and
   marked in the margin, one shade for a weight in both, and one round as bars. */

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
  cells.forEach((row, r) => row.forEach((w, t) => image.data.set(paint(w), 4 * (r * wide + t))));
  pen.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function drawWeights(place, run) {
  const data = run.weights;
  const [n, columns] = [data.n, data.rounds.length];
  const state = { shown: [...data.shown], seed: 0, column: columns - 1 };
  const map = () => {
    const svg = make("svg", { class: "chart", role: "img" });
    const tip = make("div", { class: "tip", hidden: true });
    const title = make("figcaption");
    return { svg, tip, title, figure: make("figure", { class: "plot map" }, title, svg, tip) };
  };
  const maps = [map(), map()];
  const bars = make("svg", { class: "chart bars", role: "img" });
  const key = make("svg", { class: "chart key", role: "img", "aria-label": "Shades of the weights" });
  const words = make("p", { class: "said", role: "status" });
  const slider = make("input", {
    ...{ type: "range", min: 0, max: columns - 1, value: columns - 1 },
    oninput: () => choose(Number(slider.value)),
  });
  const methods = run.methods.map((m, k) => [k, m.label]);
  const side = (k, text) => chooser(text, methods, state.shown[k], (v) => {
    state.shown[k] = Number(v);
    load();
  });
  const seeds = data.seeds.map((seed, k) => [k, String(seed)]);
  const whole = columns === run.rounds[run.rounds.length - 1] && data.seeds.length === run.seeds.length;
  place.append(
    make(
      "div",
      { class: "controls" },
      side(0, "left"),
      side(1, "right"),
      chooser("seed", seeds, 0, (v) => {
        state.seed = Number(v);
        load();
      }),
      make("label", { class: "slide" }, "round", slider),
    ),
    words,
    make("div", { class: "pair" }, ...maps.map((m) => m.figure)),
    key,
    make("div", { class: "plot" }, bars),
    ...(whole ? [] : [make("p", { class: "note" }, "Not every round and seed is kept in this page.")]),
  );

  let view; // what is drawn, for the pointer

  function choose(column) {
    slider.value = state.column = column;
    draw();
  }

  /* Weights as rows of clients: the bad ones first, then by their local steps. */
  function load() {
    const horizons = unpack(data.horizons[state.seed]);
    const steps = (t, i) => horizons[t * n + i];
    const isBad = (i) => data.bad[state.seed].includes(i);
    const clients = Array.from({ length: n }, (_, i) => i);
    const fixed = clients.every((i) => data.rounds.every((_, t) => steps(t, i) === steps(0, i)));
    const rank = (i) => [isBad(i) ? 0 : 1, fixed ? steps(0, i) : 0, i];
    clients.sort((a, b) => rank(a).map((v, k) => v - rank(b)[k]).find((d) => d) ?? 0);
    const tables = state.shown.map((method) => {
      const codes = unpack(data.codes[method][state.seed]);
      const read = (t, i) => {
        const code = codes[t * n + i];
        return code === data.absent ? null : data.low[method] + (code / (data.absent - 1)) * data.width[method];
      };
      return clients.map((i) => data.rounds.map((_, t) => read(t, i)));
    });
    const every = tables.flat(2).filter((w) => w !== null);
    const most = Math.max(...every.map(Math.abs), 1e-12);
    const bad = clients.filter(isBad).length;
    view = { clients, tables, most, least: Math.min(0, ...every), bad, steps };
    draw();
  }

  /* Shades: blue, and amber below zero; the root keeps small weights visible, and a
     client that did not take part has a thin veil. */
  function painter() {
    const [more, less, veil] = ["blue", "amber", "grey"].map((name) => inkOf(place, name));
    return (w) =>
      w === null ? [...veil, 45] : [...(w < 0 ? less : more), Math.round(255 * Math.sqrt(Math.abs(w) / view.most))];
  }

  function draw() {
    const paint = painter();
    maps.forEach((each, k) => drawMap(each, k, paint));
    drawKey(paint);
    drawBars();
    words.textContent = sentence();
  }

  function drawMap({ svg, title, figure }, k, paint) {
    const method = run.methods[state.shown[k]];
    const width = Math.max(230, figure.clientWidth || 500);
    const cell = Math.max(2, Math.min(15, 420 / n));
    const box = { width, height: cell * n + 52, left: 62, right: 8, top: 8, bottom: 44 };
    const across = (width - box.left - box.right) / columns;
    Object.assign(view, { cell, box, [`across${k}`]: across });
    title.replaceChildren(swatch(method), method.label);
    svg.setAttribute("aria-label", `Weights of ${method.label}, clients by rounds`);
    let free = -Infinity;
    const names = view.clients.flatMap((i, r) => {
      const at = box.top + (r + 0.5) * cell;
      if (at - free < 11) return [];
      free = at;
      return [[at, String(i)]];
    });
    const most = Math.min(8, width / 60);
    const ticks = niceTicks(data.rounds[0], data.rounds[columns - 1], most)
      .map((round) => [box.left + (data.rounds.indexOf(round) + 0.5) * across, String(round), data.rounds.indexOf(round)])
      .filter(([, , t]) => t >= 0);
    const area = panel(svg, box, { ticks, name: "round" }, { ticks: names, plain: true, name: "" });
    const tall = cell * n;
    area.append(
      make("image", {
        ...{ x: box.left, y: box.top, width: across * columns, height: tall, href: cellImage(view.tables[k], paint) },
        ...{ preserveAspectRatio: "none", "image-rendering": "pixelated" },
      }),
      make("rect", {
        ...{ class: "chosen", x: box.left + state.column * across, y: box.top + 0.75 },
        ...{ width: Math.max(across, 2), height: tall - 1.5 },
      }),
    );
    if (!view.bad) return svg.append(make("text", { class: "name", x: 12, y: box.top + tall / 2, transform: `rotate(-90 12 ${box.top + tall / 2})`, "text-anchor": "middle" }, "client"));
    const end = box.top + view.bad * cell;
    const word = (text, from, to, css) => {
      const at = (from + to) / 2;
      return make("text", { class: css, x: 14, y: at, transform: `rotate(-90 14 ${at})`, "text-anchor": "middle" }, text);
    };
    svg.append(
      make("rect", { class: "bad vermilion", x: 20, y: box.top, width: 6, height: end - box.top }),
      word("bad", box.top, end, "name badname"),
      word("good clients", end, box.top + tall, "name"),
      make("line", { class: "divide", x1: 20, x2: width - box.right, y1: end, y2: end }),
    );
  }

  /* The key of both maps: which shade is which weight. */
  function drawKey(paint) {
    const [least, steps, wide] = [view.least < 0 ? -view.most : 0, 64, 220];
    const ramp = Array.from({ length: steps }, (_, k) => least + ((view.most - least) * k) / (steps - 1));
    const at = scale(least, view.most, 62, 62 + wide);
    for (const [name, value] of Object.entries({ viewBox: "0 0 310 36", width: 310, height: 36 })) key.setAttribute(name, value);
    const ticks = [...niceTicks(least, 0.85 * view.most, 3), view.most].map((v) => [at(v), show(v, 2)]);
    key.replaceChildren(
      make("text", { class: "name", x: 56, y: 12, "text-anchor": "end" }, "weight"),
      make("image", { x: 62, y: 2, width: wide, height: 12, preserveAspectRatio: "none", href: cellImage([ramp], paint) }),
      make("rect", { class: "keyframe", x: 62, y: 2, width: wide, height: 12 }),
      ...apart(ticks).map(([px, text]) => make("text", { x: px, y: 29, "text-anchor": "middle" }, text)),
    );
  }

  /* The chosen round: both weights of each client, and what equal weights would be. */
  function drawBars() {
    const [t, width] = [state.column, Math.max(230, bars.parentNode.clientWidth || 700)];
    const rows = view.tables.map((rows_) => rows_.map((row) => row[t] ?? 0));
    const equal = 1 / Math.max(1, view.tables[0].filter((row) => row[t] !== null).length);
    const [low, high] = [Math.min(0, ...rows.flat()), Math.max(...rows.flat(), equal)];
    const box = { width, height: 190, left: 62, right: 8, top: 10, bottom: 44 };
    const y = scale(low, high, box.height - box.bottom, box.top);
    const step = (width - box.left - box.right) / n;
    const ticks = view.clients.map((i, c) => [box.left + (c + 0.5) * step, String(i)]);
    bars.setAttribute("aria-label", `Weights of each client in round ${data.rounds[t]}`);
    const name = `client, round ${data.rounds[t]}` + (view.bad ? ` (the first ${view.bad}: bad)` : "");
    const area = panel(bars, box, { ticks, name }, { ticks: niceTicks(low, high, 4).map((v) => [y(v), show(v, 2)]), name: "weight" });
    if (view.bad) area.append(make("rect", { class: "shade", x: box.left, y: box.top, width: view.bad * step, height: box.height - box.top - box.bottom }));
    rows.forEach((row, k) =>
      row.forEach((w, c) =>
        area.append(
          make("rect", {
            ...{ class: `bar ${run.methods[state.shown[k]].colour}`, x: box.left + (c + 0.12 + 0.38 * k) * step },
            ...{ width: 0.36 * step, y: Math.min(y(w), y(0)), height: Math.abs(y(0) - y(w)) },
          }),
        ),
      ),
    );
    area.append(make("line", { class: "equal", x1: box.left, x2: width - box.right, y1: y(equal), y2: y(equal) }));
    view.bars = rows;
  }

  /* What the chosen round shows, in words: the weight of the bad clients, or without any
     the largest weight of a client. */
  function sentence() {
    const t = state.column;
    const told = state.shown.map((method, k) => {
      const column = view.tables[k].map((row) => Math.abs(row[t] ?? 0));
      const sum = (values) => values.reduce((a, w) => a + w, 0);
      const part = view.bad ? sum(column.slice(0, view.bad)) : Math.max(...column);
      return `${show((100 * part) / (sum(column) || 1), 3)} %${k ? "" : " of the weight"} under ${run.methods[method].label}`;
    });
    const both = state.shown[0] === state.shown[1] ? told.slice(0, 1) : told;
    const who = view.bad > 1 ? `the ${view.bad} bad clients have` : `the ${view.bad ? "bad" : "heaviest"} client has`;
    return `Round ${data.rounds[t]}, seed ${data.seeds[state.seed]}: ${who} ${both.join(", ")}.`;
  }

  maps.forEach(({ svg, tip, figure }, k) => {
    const under = (event) => {
      const frame = svg.getBoundingClientRect();
      const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
      const t = Math.floor((px - view.box.left) / view[`across${k}`]);
      const r = Math.floor((py - view.box.top) / view.cell);
      return t >= 0 && t < columns && r >= 0 && r < n ? { t, r, px, py } : null;
    };
    svg.addEventListener("pointermove", (event) => {
      const at = under(event);
      tip.hidden = !at;
      if (!at) return;
      const [i, w] = [view.clients[at.r], view.tables[k][at.r][at.t]];
      const who = `client ${i}${at.r < view.bad ? " (bad)" : ""}`;
      tip.textContent = `round ${data.rounds[at.t]}, ${who}: ` + (w === null ? "did not take part" : `${show(w, 3)}, H = ${view.steps(at.t, i)}`);
      putBeside(tip, figure.clientWidth, at.px, at.py + 34);
    });
    svg.addEventListener("pointerleave", () => {
      tip.hidden = true;
    });
    svg.addEventListener("click", (event) => {
      const at = under(event);
      if (at) choose(at.t);
    });
    const label = () => run.methods[state.shown[k]].label;
    const cells = () => view.tables[k].flatMap((row, r) => data.rounds.map((round, t) => [view.clients[r], round, row[t]]));
    offer({
      ...{ run, place: figure, title: () => `Weights of ${label()}`, name: () => `weights of ${label()}` },
      ...{ draw, svg: () => svg, rows: () => [["client", "round", "weight"], ...cells()] },
      latex: () => mapLatex(view.tables[k], data.rounds),
    });
  });
  offer({
    ...{ run, place: bars, title: () => "Weights in one round", name: () => `weights in round ${data.rounds[state.column]}` },
    ...{ draw, svg: () => bars, latex: () => barsLatex(view.clients, view.bars, state.shown.map((k) => run.methods[k].label)) },
    rows: () => [
      ["client", ...state.shown.map((k) => run.methods[k].label)],
      ...view.clients.map((i, c) => [i, ...view.bars.map((row) => row[c])]),
    ],
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  load();
  new ResizeObserver(draw).observe(place);
}
