"""The page in a real browser, by the WebDriver protocol itself: JSON over HTTP."""

import importlib.resources
import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hewfl.experiments.spec import spec_from_table
from hewfl.report.page import write_report
from tests.experiments.runs import table
from tests.report.test_report import HOSTILE, finished_run, hostile_run

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs a browser: apt-get install chromium chromium-driver",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for a reference
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
LEFT, RIGHT, ENTER, ESCAPE, TAB = "\ue012", "\ue014", "\ue007", "\ue00c", "\ue004"
FIRST, CURVES, WEIGHTS = (f'[data-view="{k}"]' for k in ("first", "curves", "weights"))


class Browser:
    """One session with one page."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        options = {
            "binary": CHROMIUM,
            "args": ["--headless=new", "--no-sandbox", "--window-size=1300,1400"],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        answer = self.send("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.root += f"/session/{answer['sessionId']}"

    def send(self, path: str, body: Any = None, method: str = "POST") -> Any:
        request = urllib.request.Request(
            self.root + path,
            data=json.dumps(body or {}).encode() if method == "POST" else None,
            method=method,
            headers={"Content-Type": "application/json"},
        )
        with DIRECT.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def run(self, script: str, *given: Any) -> Any:
        return self.send("/execute/sync", {"script": script, "args": list(given)})

    def find(self, css: str) -> str:
        found = self.send("/element", {"using": "css selector", "value": css})
        return str(found[ELEMENT])

    def click(self, css: str) -> None:
        middle = (
            "document.querySelector(arguments[0]).scrollIntoView({block: 'center'})"
        )
        self.run(middle, css)  # else the navigation may lie on it
        self.send(f"/element/{self.find(css)}/click")

    def text(self, css: str) -> str:
        return str(self.send(f"/element/{self.find(css)}/text", method="GET"))

    def keys(self, css: str, text: str) -> None:
        self.send(f"/element/{self.find(css)}/value", {"text": text})

    def control(self, command: str, **given: Any) -> None:
        """A command of the browser's own protocol."""
        self.send("/goog/cdp/execute", {"cmd": command, "params": given})

    def show(self, page: Path, *, width: int = 1300, scheme: str = "light") -> None:
        """Load a page at a width, for a reader of dark or light pages."""
        wanted = {"name": "prefers-color-scheme", "value": scheme}
        self.control("Emulation.setEmulatedMedia", features=[wanted])
        size = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": False}
        self.control("Emulation.setDeviceMetricsOverride", **size)
        self.send("/url", {"url": page.as_uri()})

    def violations(self) -> list[Any]:
        """What axe-core finds wrong for readers who cannot see or point."""
        axe = importlib.resources.files("axe_core_python") / "axe.min.js"
        self.run(f"{axe.read_text('utf-8')}; window.axe = axe;")
        script = """
          const done = arguments[arguments.length - 1];
          const said = (v) => [v.id, v.nodes.map((n) => n.html)];
          axe.run().then((found) => done(found.violations.map(said)));
        """
        return list(self.send("/execute/async", {"script": script, "args": []}))

    def drag(self, css: str, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Draw a brush between two places, from the middle of an element."""
        origin = {ELEMENT: self.find(css)}
        at = [
            {"type": "pointerMove", "x": x, "y": y, "origin": origin, "duration": 20}
            for x, y in (start, end)
        ]
        ends = [{"type": f"pointer{way}", "button": 0} for way in ("Down", "Up")]
        actions = [at[0], ends[0], at[1], ends[1]]
        mouse = {"type": "pointer", "id": "mouse", "actions": actions}
        self.send("/actions", {"actions": [mouse]})

    def hover(self, css: str, x: int = 0, y: int = 0) -> None:
        """Move the pointer to a place from the middle of an element."""
        origin = {ELEMENT: self.find(css)}
        move = {"type": "pointerMove", "x": x, "y": y, "origin": origin, "duration": 0}
        mouse = {"type": "pointer", "id": "mouse", "actions": [move]}
        self.send("/actions", {"actions": [mouse]})

    def paths(self) -> list[str]:
        """The lines of the curves, below the first screen."""
        script = (
            "[...document.querySelectorAll(arguments[0])].map(p => p.getAttribute('d'))"
        )
        return list(self.run(f"return {script}", f"{CURVES} path.mean"))

    def complaints(self) -> list[Any]:
        return list(self.send("/se/log", {"type": "browser"}))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_report([hostile_run(tmp_path_factory.getbasetemp())], file)
    return file


@pytest.fixture(scope="module")
def session() -> Iterator[Browser]:
    assert DRIVER is not None
    command = [DRIVER, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        started = next(line for line in driver.stdout if "successfully on port" in line)
        found = Browser(int(started.rstrip(".\n").rsplit(" ", 1)[1]))
        yield found
        found.send("", method="DELETE")
        driver.terminate()


@pytest.fixture
def browser(session: Browser, page: Path) -> Iterator[Browser]:
    """The page, freshly loaded; whatever is done with it, the console stays empty."""
    session.show(page)
    yield session
    assert session.complaints() == []


def test_curves_are_drawn(browser: Browser) -> None:
    paths = browser.paths()
    assert len(paths) == 3
    for path in paths:
        assert path.count("L") == 6  # seven points
        assert "NaN" not in path


def test_methods_are_toggled_by_the_legend(browser: Browser) -> None:
    button = f"{CURVES} .legend button:nth-child(2)"
    before = browser.paths()
    browser.click(button)
    assert len(browser.paths()) == 2
    pressed = "return document.querySelector(arguments[0]).ariaPressed"
    assert browser.run(pressed, button) == "false"
    browser.keys(button, " ")  # by keyboard
    assert browser.paths() == before


def test_all_methods_are_hidden_and_shown(browser: Browser) -> None:
    before = browser.paths()
    browser.click(f"{CURVES} .legend button:last-child")
    assert browser.paths() == []
    browser.click(f"{CURVES} .legend button:nth-last-child(2)")
    assert browser.paths() == before


@pytest.mark.parametrize(
    "control",
    [
        'option[value="gap"]',
        'option[value="scalars"]',
        'option[value="paper_scalars"]',
        'input[type="checkbox"]',
        "label ~ button",
    ],
)
def test_every_control_redraws(browser: Browser, control: str) -> None:
    drawing = "return document.querySelector(arguments[0]).innerHTML"
    before = browser.run(drawing, f"{CURVES} svg.chart")
    browser.click(f"{CURVES} {control}")
    assert len(browser.paths()) == 3
    assert browser.run(drawing, f"{CURVES} svg.chart") != before


def test_accuracies_fit_the_panel(browser: Browser) -> None:
    browser.click(f'{CURVES} option[value="test_accuracy"]')
    ends = [float(path.rsplit(",", 1)[1]) for path in browser.paths()]
    assert all(10 <= end <= 386 for end in ends)  # height and margins in chart.js


def test_seeds_are_shown_one_by_one(browser: Browser) -> None:
    count = "return document.querySelectorAll(arguments[0]).length"
    band, seed = f"{CURVES} path.band", f"{CURVES} path.seed"
    assert browser.run(count, band) == 2  # of the leaders
    browser.click(f'{CURVES} option[value="band"]')
    assert browser.run(count, band) == 3
    browser.click(f'{CURVES} option[value="seeds"]')
    assert browser.run(count, seed) == 6
    assert browser.run(count, band) == 0


def test_a_brush_zooms_and_escape_shows_all(browser: Browser) -> None:
    plot = f"{CURVES} svg.chart"
    ticks = (
        "return [...document.querySelectorAll(arguments[0])].map(t => t.textContent)"
    )
    names = f"{plot} > text[text-anchor=middle]"
    before = browser.run(ticks, names)
    browser.drag(plot, (-200, 0), (100, 5))
    zoomed = browser.run(ticks, names)
    assert zoomed != before
    browser.keys(plot, ESCAPE)
    assert browser.run(ticks, names) == before
    browser.keys(plot, RIGHT + RIGHT + ENTER + RIGHT + RIGHT + ENTER)  # by keys alone
    assert browser.run(ticks, names) not in (before, zoomed)


def test_lines_have_names_that_do_not_lie_on_each_other(browser: Browser) -> None:
    script = (
        "return [...document.querySelectorAll('text.end')].map(t => [t.textContent, "
    )
    script = script.replace("'text.end'", "arguments[0]")
    found = browser.run(f"{script} Number(t.getAttribute('y'))])", f"{CURVES} text.end")
    assert len(found) == 3
    assert {name for name, _ in found} >= {"HEW", "HewHet"}
    heights = sorted(y for _, y in found)
    assert min(b - a for a, b in pairwise(heights)) >= 12.9


def test_the_pointer_shows_values(browser: Browser) -> None:
    tip = f"{CURVES} .tip"
    assert browser.text(tip) == ""
    browser.hover(f"{CURVES} .plot", x=100)
    shown = browser.text(tip)
    assert shown.startswith("round ")
    assert HOSTILE in shown
    assert shown.count("±") == 3


def test_the_arrow_keys_show_values(browser: Browser) -> None:
    plot = f"{CURVES} svg.chart"
    browser.keys(plot, RIGHT + RIGHT)
    assert browser.text(f"{CURVES} .tip").startswith("round 1")
    browser.keys(plot, LEFT)
    assert browser.text(f"{CURVES} .tip").startswith("round 0")


def test_the_first_screen_has_sentence_numbers_curve_and_setting(
    browser: Browser, page: Path
) -> None:
    browser.control(
        "Emulation.setDeviceMetricsOverride",
        width=1400,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    bottom = (
        "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
    )
    for css in ("h1", ".number:last-child", f"{FIRST} svg.chart", ".compared"):
        assert 0 < browser.run(bottom, css) < 900
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.run(count, f"{FIRST} path.mean") == 3
    assert browser.text("h1").startswith("HEW ")
    browser.show(page)


def test_a_sweep_begins_with_its_values(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("sweep")
    runs = []
    for size in (4, 16):
        given = table() | {"name": f"mine-batch_size={size}", "audit_every": 0}
        given["clients"] = given["clients"] | {"batch_size": size}
        runs.append(finished_run(root, spec_from_table(given)))
    write_report(runs, root / "report.html")
    browser.show(root / "report.html", width=1400)
    panels = '[data-view="panels"]'
    texts = (
        "return [...document.querySelectorAll(arguments[0])].map(t => t.textContent)"
    )
    shown = browser.run(texts, f"{panels} svg.chart text")
    assert {"4", "16", "batch_size", "test accuracy (%)"} <= set(shown)
    names = browser.run("return panels.methods.map(m => m.label)")
    assert set(names) <= set(shown)  # at the ends of their lines
    assert browser.run(texts, f"{panels} path.mean") == [""] * len(names)
    browser.hover(f"{panels} svg.chart", x=-200)
    assert browser.text(f"{panels} .tip").startswith("batch_size 4")
    for rows in browser.run("return panels.methods.map(m => m.curves.test_accuracy)"):
        assert [len(row) for row in rows] == [2, 2]  # seeds by panels


def test_weights_change_with_the_choices(browser: Browser) -> None:
    image = "return [...document.querySelectorAll(arguments[0])].map(m => m.innerHTML)"
    words, pictures = [], []

    def look() -> None:
        words.append(browser.text(f"{WEIGHTS} .said"))
        pictures.append(str(browser.run(image, f"{WEIGHTS} .map svg.chart")))

    look()
    for control in (1, 2, 3):  # left, right, seed
        browser.click(f"{WEIGHTS} label:nth-child({control}) option:nth-child(2)")
        look()
    browser.keys(f"{WEIGHTS} input[type=range]", LEFT)
    look()
    assert len(set(pictures)) == len(pictures)
    # the average beside the author's rule at first, which is FedAvg beside HEW
    assert words[0].startswith("Round 6, seed 0: the heaviest client has ")
    assert f" % of the weight under {HOSTILE}, " in words[0]
    assert words[0].endswith(" % under HEW.")
    assert "under HewHet, " in words[1]
    assert words[3].startswith("Round 6, seed 1: ")
    assert words[4].startswith("Round 5, seed 1: ")


def test_the_pointer_shows_a_weight(browser: Browser) -> None:
    browser.hover(f"{WEIGHTS} .map svg.chart", y=-20)
    assert "client" in browser.text(f"{WEIGHTS} .tip")


def test_a_click_on_the_map_chooses_its_round(browser: Browser) -> None:
    browser.click(f"{WEIGHTS} .map svg.chart")  # its middle
    assert not browser.text(f"{WEIGHTS} .said").startswith("Round 6")


@pytest.fixture(scope="module")
def faulty_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with two bad clients, which the first method does not know."""
    root = tmp_path_factory.mktemp("faulty")
    given = table() | {"audit_every": 0, "methods": []}
    given["clients"] |= {
        "scenario": {"faults": [{"kind": "RandomLabels", "share": 0.4}]}
    }
    for name in ("trust", "FedAvg", "oracle"):
        step = "step_scale" if name == "FedAvg" else "amplitude"
        given["methods"].append({"method": name, "label": name, step: 0.5})
    write_report([finished_run(root, spec_from_table(given))], root / "report.html")
    return root / "report.html"


def test_bad_clients_are_marked_and_come_first(
    browser: Browser, faulty_page: Path
) -> None:
    browser.show(faulty_page)
    assert browser.text("h1").startswith("2 of 5 clients have random labels: trust")
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.run(count, f"{WEIGHTS} rect.bad") == 2  # one for each map
    said = browser.text(f"{WEIGHTS} .said")
    assert re.search(
        r": the 2 bad clients have \d.* % of the weight under FedAvg", said
    )
    (who,) = browser.run("return runs.map(r => r.weights.bad[0])")
    rows = "return [...document.querySelector(arguments[0]).querySelectorAll('text')]"
    texts = browser.run(f"{rows}.map(t => t.textContent)", f"{WEIGHTS} .map svg.chart")
    assert {int(text) for text in texts[:2]} == set(who)
    styles = (
        "return getComputedStyle(document.querySelector(arguments[0])).strokeDasharray"
    )
    assert browser.run(styles, f"{CURVES} path.mean.grey") != "none"  # the limit
    assert browser.violations() == []


def test_labels_stay_text(browser: Browser) -> None:
    assert browser.run("return document.querySelectorAll('body b').length") == 0
    assert HOSTILE in browser.text(f"{CURVES} .legend")
    assert HOSTILE in browser.text("#run-0-finals table")


def test_the_maps_have_a_key(browser: Browser) -> None:
    count = "return document.querySelectorAll(arguments[0]).length"
    assert "weight" in browser.text(f"{WEIGHTS} svg.key")
    assert browser.run(count, f"{WEIGHTS} .map image") == 2
    assert browser.run(count, f"{WEIGHTS} svg.key image") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 320])
def test_anybody_can_read_it(
    browser: Browser, page: Path, width: int, scheme: str
) -> None:
    """No violation of axe-core, nothing beyond the edge of a phone."""
    browser.show(page, width=width, scheme=scheme)
    assert browser.violations() == []
    wide = "return document.documentElement.scrollWidth - innerWidth"
    assert browser.run(wide) <= 0
    verdict = """
      const css = ".cards :is(span.better, span.worse, span.undecided)";
      const cells = [...document.querySelectorAll(css)];
      return cells.filter((c) => c.getBoundingClientRect().right > innerWidth).length;
    """
    assert browser.run(verdict) == 0


def test_keys_alone_reach_every_control(browser: Browser) -> None:
    """Tab visits what can be used, and each shows that it has the focus."""
    wanted = browser.run("""
      const css = "a[href], button, select, input, summary, [tabindex]";
      const own = (e) => (e.tagName === "SUMMARY" ? e.parentNode.parentNode : e);
      const open = (e) => !own(e).closest("details:not([open]), dialog:not([open])");
      const seen = (e) => open(e) && e.getClientRects().length;
      window.wanted = [...document.querySelectorAll(css)].filter(seen);
      window.order = [];
      return wanted.length;
    """)
    where = """
      order.push(document.activeElement);
      return getComputedStyle(document.activeElement).outlineStyle;
    """
    styles = []
    for _ in range(wanted):
        browser.send("/actions", {"actions": [key(TAB)]})
        styles.append(browser.run(where))
    missed = "return wanted.filter((e) => !order.includes(e)).map((e) => e.outerHTML)"
    assert browser.run(missed) == []
    assert set(styles) <= {"solid", "auto"}


def key(text: str) -> dict[str, Any]:
    strokes = [{"type": f"key{way}", "value": text} for way in ("Down", "Up")]
    return {"type": "key", "id": "keyboard", "actions": strokes}


def test_figures_and_tables_are_saved_by_one_button(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    """Each on a page loaded for it: Chromium stops a page's eleventh download."""
    browser.control(
        "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path)
    )
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.run(count, "button.export") == 1
    named = {
        "Curves: test accuracy": "small-i-test-accuracy-over-rounds",
        "Weights of HEW": "small-i-weights-of-hew",
        "Weights in one round": "small-i-weights-in-round-6",
        "Table: final values": "small-i-final-values",
    }
    wanted = set()
    for title, name in named.items():
        browser.show(page)
        browser.click("button.export")
        browser.run(
            """
            const options = [...document.querySelectorAll("dialog option")];
            const select = document.querySelector("dialog select");
            select.value = options.find((o) => o.textContent === arguments[0]).value;
            select.dispatchEvent(new Event("change"));
            """,
            title,
        )
        kinds = ["svg", "png", "csv", "tex"]
        is_figure = not title.startswith("Table")
        assert browser.run(count, "dialog button:disabled") == (0 if is_figure else 2)
        for k in range(1, 5) if is_figure else range(3, 5):
            browser.click(f"dialog .controls button:nth-of-type({k})")
            wanted.add(f"{name}.{kinds[k - 1]}")
        for _ in range(600):
            if {file.name for file in tmp_path.iterdir()} == wanted:
                break
            time.sleep(0.1)
        assert {file.name for file in tmp_path.iterdir()} == wanted
    curves = tmp_path / "small-i-test-accuracy-over-rounds"
    drawing = curves.with_suffix(".svg").read_text("utf-8")
    assert drawing.startswith("<svg")
    assert "var(" not in drawing
    assert 'fill="#ffffff"' in drawing
    assert curves.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    header = curves.with_suffix(".csv").read_text("utf-8").splitlines()[0]
    assert header.startswith("method,round,rounds,test accuracy (%),deviation,seed 0")
    assert "\\addplot" in curves.with_suffix(".tex").read_text("utf-8")
    text = (tmp_path / "small-i-final-values.tex").read_text("utf-8")
    assert "\\textbf{" in text
    assert "\\&amp;" in text  # as the label has it
    assert text.count(" & ") == 4 * text.splitlines()[6].count(" & ")


def test_the_dialog_begins_with_what_is_looked_at(browser: Browser) -> None:
    chosen = (
        "return document.querySelector('dialog select').selectedOptions[0].textContent"
    )
    middle = "document.querySelector(arguments[0]).scrollIntoView({block: 'center'})"
    for css, title in (
        (f"{CURVES} svg.chart", "Curves: test accuracy"),
        ('table[data-name="final values"]', "Table: final values"),
    ):
        browser.run(middle, css)
        browser.send(f"/element/{browser.find('button.export')}/click")
        assert browser.run(chosen) == title
        browser.click("dialog p:last-child button")


def test_the_navigation_stays(browser: Browser) -> None:
    browser.click('nav a[href="#run-0-weights"]')
    script = "return document.querySelector('header').getBoundingClientRect().top"
    assert browser.run(script) == 0
