/* Puts it all in place: figures, menus, the navigation, the refresh while a run goes on. */

const runs = JSON.parse(document.getElementById("data").textContent);

for (const place of document.querySelectorAll(".view")) {
  place.hidden = false;
  const draw = { curves: drawCurves, weights: drawWeights }[place.dataset.view];
  draw(place, runs[Number(place.dataset.run)]);
}

for (const found of document.querySelectorAll("svg.swatch[data-marker]"))
  if (found.dataset.marker) {
    const [, colour] = found.classList;
    found.append(mark(found.dataset.marker, colour, 17, 5));
  }

for (const table of document.querySelectorAll(".scroll > table"))
  table.parentNode.after(tableExporter(table));

/* Who cannot use a pointer scrolls a wide table by its focus. */
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const isWide = target.scrollWidth > target.clientWidth + 1;
    if (isWide) {
      target.setAttribute("tabindex", 0);
      target.setAttribute("role", "region");
      target.setAttribute("aria-label", target.querySelector("caption").textContent);
    } else for (const name of ["tabindex", "role", "aria-label"]) target.removeAttribute(name);
  }
});
for (const place of document.querySelectorAll(".scroll:not([role])")) widths.observe(place);

/* The navigation knows where the reader is. */
const nav = document.querySelector("nav");
function follow() {
  const line = nav.getBoundingClientRect().bottom + 40;
  const above = (css) =>
    [...document.querySelectorAll(css)].filter((e) => e.getBoundingClientRect().top <= line).pop();
  const run = above("article[id]") ?? null;
  const section = above("article[id] > section[id]");
  for (const item of nav.querySelectorAll("li.run"))
    item.classList.toggle("current", runs.length === 1 || run?.id === `run-${item.dataset.run}`);
  for (const link of nav.querySelectorAll("a")) {
    const isHere = section && link.hash === `#${section.id}`;
    if (isHere) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}
if (nav) {
  addEventListener("scroll", follow, { passive: true });
  follow();
}

/* While a run goes on, the page is written anew; the reader can hold it. */
const every = Number(document.body.dataset.refresh);
if (every) {
  const key = `hold ${location.pathname}`;
  const held = sessionStorage.getItem(key) === "yes";
  const label = checkbox(`load again every ${every} s`, !held, (on) => {
    sessionStorage.setItem(key, on ? "no" : "yes");
  });
  document.querySelector("header").append(make("p", { class: "controls" }, label));
  setInterval(() => {
    if (label.firstChild.checked) location.reload();
  }, 1000 * every);
}
