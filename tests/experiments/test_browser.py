"""The page in a real browser, by the WebDriver protocol itself: JSON over HTTP."""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hewfl.experiments.report import write_report
from tests.experiments.test_report import HOSTILE, hostile_run

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
LEFT, RIGHT = "\ue012", "\ue014"  # arrow keys
CURVES, WEIGHTS = '[data-view="curves"]', '[data-view="weights"]'


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
        self.send(f"/element/{self.find(css)}/click")

    def text(self, css: str) -> str:
        return str(self.send(f"/element/{self.find(css)}/text", method="GET"))

    def keys(self, css: str, text: str) -> None:
        self.send(f"/element/{self.find(css)}/value", {"text": text})

    def hover(self, css: str, x: int = 0, y: int = 0) -> None:
        """Move the pointer to a place from the middle of an element."""
        origin = {ELEMENT: self.find(css)}
        move = {"type": "pointerMove", "x": x, "y": y, "origin": origin, "duration": 0}
        mouse = {"type": "pointer", "id": "mouse", "actions": [move]}
        self.send("/actions", {"actions": [mouse]})

    def paths(self) -> list[str]:
        """The lines of the curves."""
        found = "[...document.querySelectorAll('path.mean')]"
        return list(self.run(f"return {found}.map(p => p.getAttribute('d'))"))

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
    session.send("/url", {"url": page.as_uri()})
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
        'option[value="test_accuracy"]',
        'input[value="scalars"]',
        'input[value="paper_scalars"]',
        'input[type="checkbox"]',
    ],
)
def test_every_control_redraws(browser: Browser, control: str) -> None:
    drawing = "return document.querySelector('.plot > svg').innerHTML"
    before = browser.run(drawing)
    browser.click(f"{CURVES} {control}")
    assert len(browser.paths()) == 3
    assert browser.run(drawing) != before


def test_accuracies_fit_the_panel(browser: Browser) -> None:
    browser.click(f'{CURVES} option[value="test_accuracy"]')
    ends = [float(path.rsplit(",", 1)[1]) for path in browser.paths()]
    assert all(12 <= end <= 374 for end in ends)  # PLOT in report.js


def test_seeds_are_shown_one_by_one(browser: Browser) -> None:
    count = "return document.querySelectorAll(arguments[0]).length"
    assert browser.run(count, "path.band") == 3
    browser.click(f'{CURVES} option[value="seeds"]')
    assert browser.run(count, "path.seed") == 6
    assert browser.run(count, "path.band") == 0


def test_the_first_rounds_can_be_left_out(browser: Browser) -> None:
    browser.keys(f"{CURVES} input[type=range]", RIGHT + RIGHT)
    assert all(path.count("L") == 4 for path in browser.paths())


def test_the_pointer_shows_values(browser: Browser) -> None:
    tip = f"{CURVES} .tip"
    assert browser.text(tip) == ""
    browser.hover(f"{CURVES} .plot", x=100)
    shown = browser.text(tip)
    assert shown.startswith("round ")
    assert HOSTILE in shown
    assert shown.count("±") == 3


def test_the_arrow_keys_show_values(browser: Browser) -> None:
    plot = f"{CURVES} .plot > svg"
    browser.keys(plot, RIGHT + RIGHT)
    assert browser.text(f"{CURVES} .tip").startswith("round 1")
    browser.keys(plot, LEFT)
    assert browser.text(f"{CURVES} .tip").startswith("round 0")


def test_weights_change_with_the_choices(browser: Browser) -> None:
    canvas = f"{WEIGHTS} canvas"
    image = "return document.querySelector(arguments[0]).toDataURL()"
    words, pictures = [], []

    def look() -> None:
        words.append(browser.text(f"{WEIGHTS} [role=status]"))
        pictures.append(browser.run(image, canvas))

    look()
    for control in (1, 2, 3):  # method, seed, rows
        browser.click(f"{WEIGHTS} label:nth-child({control}) option:nth-child(2)")
        look()
    browser.keys(f"{WEIGHTS} input[type=range]", LEFT)
    look()
    assert len(set(pictures)) == len(pictures)
    assert words[0].startswith("HEW, seed 0, round 6: ")
    assert words[1].startswith("HewHet, seed 0, round 6: ")
    assert words[2].startswith("HewHet, seed 1, round 6: ")
    assert words[4].startswith("HewHet, seed 1, round 5: ")


def test_the_pointer_shows_a_weight(browser: Browser) -> None:
    browser.hover(f"{WEIGHTS} canvas")
    assert "client" in browser.text(f"{WEIGHTS} .tip")


def test_labels_stay_text(browser: Browser) -> None:
    assert browser.run("return document.querySelectorAll('body b').length") == 0
    assert HOSTILE in browser.text(f"{CURVES} .legend")
    assert HOSTILE in browser.text("article table")
