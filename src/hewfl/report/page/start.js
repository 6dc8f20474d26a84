/* Puts it all in place: figures, the button for exports, the refresh of a run that goes on. */

const DRAWINGS = {
  ...{ first: (place, run) => drawCurves(place, run, true) },
  ...{ curves: drawCurves, weights: drawWeights, panels: (place) => drawCurves(place, panels, true) },
};
for (const place of document.querySelectorAll(".view")) {
  place.hidden = false;
  DRAWINGS[place.dataset.view](place, runs[Number(place.dataset.run)]);
}
for (const table of document.querySelectorAll("table[data-name]")) offerTable(table);
if (offers.length) document.querySelector("header").append(...exporter());

/* Who cannot use a pointer scrolls a wide table by its focus. */
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const isWide = target.scrollWidth > target.clientWidth + 1;
    if (isWide) {
      target.setAttribute("tabindex", 0);
      target.setAttribute("role", "region");
      target.setAttribute("aria-label", target.dataset.title);
    } else for (const name of ["tabindex", "role", "aria-label"]) target.removeAttribute(name);
  }
});
for (const place of document.querySelectorAll(".scroll:not([role])")) widths.observe(place);

/* While a run goes on, the page is written anew; the reader can hold it. */
const every = Number(document.body.dataset.refresh);
if (every) {
  const key = `hold ${location.pathname}`;
  const held = sessionStorage.getItem(key) === "yes";
  const label = checkbox(`load again every ${every} s`, !held, (on) => {
    sessionStorage.setItem(key, on ? "no" : "yes");
  });
  document.querySelector("header").append(label);
  setInterval(() => {
    if (label.firstChild.checked) location.reload();
  }, 1000 * every);
}
