"""The page as text: what it says, that it is safe, small and needs nothing else."""

import base64
import hashlib
import html
import json
import math
import re
import shutil
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hewfl.cli.app import app
from hewfl.core.atomic import read_json, write_json
from hewfl.core.validation import Array
from hewfl.errors import InvalidInputError
from hewfl.experiments.executor import Progress
from hewfl.experiments.results import Results, read_results
from hewfl.experiments.run import finish, run_all
from hewfl.experiments.run_folder import Folder, folder_for, open_folder
from hewfl.experiments.spec import Spec, spec_from_table, write_spec
from hewfl.experiments.statistics import (
    compare,
    from_json,
    interval_text,
    rank_methods,
    reason_text,
    seeds_text,
    verdict_text,
)
from hewfl.report.page import write_report
from hewfl.report.page_data import ABSENT
from tests.experiments.runs import small, table

HOSTILE = """<b>&amp;"'</b></script><script>alert(1)</script>"""
NAME = """small <i>&"'"""


def hostile_spec() -> Spec:
    spec = small()
    *own, baseline = spec.methods
    methods = (*own, replace(baseline, label=HOSTILE))
    return replace(spec, methods=methods, name=NAME)


def finished_run(root: Path, spec: Spec) -> Folder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEWFL_CACHE", str(root / "cache"))
        folder = folder_for(spec, root)
        run_all([folder], jobs=0, progress=Progress())
    return folder


@cache
def hostile_run(session: Path) -> Folder:
    """The run behind the pages and figures of these tests, made once in a session."""
    return finished_run(session / "hostile", hostile_spec())


def results_of(folder: Folder) -> Results:
    spec = folder.tuned
    assert spec is not None
    return read_results(spec, {seed: folder.of_seed(seed) for seed in spec.seeds})


class Reader(HTMLParser):
    """What a browser would see: elements, attributes, text outside scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - as the parser calls it
        self.inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self.inside == "script" else self.text).append(data)

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])["runs"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return hostile_run(tmp_path_factory.getbasetemp())


@pytest.fixture
def copy(run: Folder, tmp_path: Path) -> Folder:
    """One whose files may be changed."""
    shutil.copytree(run.path, tmp_path / "copy")
    (tmp_path / "copy" / "checksums.json").unlink()  # they would notice
    return open_folder(tmp_path / "copy")


def page_of(folders: list[Folder], folder: Path) -> str:
    write_report(folders, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def read(folder: Folder, place: Path) -> Reader:
    return Reader(page_of([folder], place))


# ------------------------------------------------------------------ safety


def test_the_page_refers_to_nothing_outside(run: Folder, tmp_path: Path) -> None:
    page = read(run, tmp_path)
    links = [a[k] for _, a in page.tags for k in ("src", "href") if k in a]
    assert [link for link in links if not str(link).startswith("#")] == ["data:,"]
    assert not re.search(r"@import|url\(", page_of([run], tmp_path))


def test_text_from_files_is_escaped(run: Folder, tmp_path: Path) -> None:
    page = read(run, tmp_path)
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == 2
    assert "b" not in names
    assert "i" not in names
    assert HOSTILE in "".join(page.text)
    assert page.data[0]["methods"][2]["label"] == HOSTILE


def test_the_policy_allows_the_script_and_style_of_the_page_only(
    run: Folder, tmp_path: Path
) -> None:
    text = page_of([run], tmp_path)
    page = Reader(text)
    (policy,) = [
        a["content"]
        for tag, a in page.tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    for content in (page.scripts[1], style):
        digest = hashlib.sha256(content.encode()).digest()
        assert base64.b64encode(digest).decode() in policy


def test_the_same_run_gives_the_same_bytes(run: Folder, tmp_path: Path) -> None:
    assert page_of([run], tmp_path) == page_of([run], tmp_path)


# ------------------------------------------------------------------ data


def test_curves_are_those_of_the_run(run: Folder, tmp_path: Path) -> None:
    (data,) = read(run, tmp_path).data
    results = results_of(run)
    assert data["rounds"] == results.rounds.tolist()
    offered = [quantity["key"] for quantity in data["quantities"]]
    assert offered[:2] == ["gap", "objective"]
    assert "test_accuracy" in offered
    for method, label in zip(data["methods"], results.labels, strict=True):
        for key in offered:
            there = np.array(method["curves"][key])
            np.testing.assert_allclose(there, results.curve(label, key), rtol=5e-6)
        sent = results.curve(label, "scalars").mean(axis=0)
        np.testing.assert_allclose(method["at"]["scalars"], sent, rtol=5e-6)


def unpacked(text: str, shape: tuple[int, int]) -> Array:
    return (
        np.frombuffer(base64.b64decode(text), dtype="<u2").reshape(shape).astype(float)
    )


def test_weights_are_those_of_the_run(run: Folder, tmp_path: Path) -> None:
    weights = read(run, tmp_path).data[0]["weights"]
    results = results_of(run)
    shape = (len(weights["rounds"]), weights["n"])
    assert shape == (6, 5)
    for entry in range(3):
        low, width = weights["low"][entry], weights["width"][entry]
        for s, by_entry in enumerate(results.records):
            there = low + unpacked(weights["codes"][entry][s], shape) / 65534 * width
            ours = np.array([record.weights for record in by_entry[entry][1:]])
            np.testing.assert_allclose(there, ours, atol=width / 65534)
            horizons = np.array([record.horizons for record in by_entry[entry][1:]])
            np.testing.assert_array_equal(
                unpacked(weights["horizons"][s], shape), horizons
            )


def test_absent_clients_are_marked(tmp_path: Path) -> None:
    spec = small()
    few = replace(spec.clients, participation=2)
    some = replace(spec, methods=spec.methods[1:2], clients=few, seeds=(3,))
    run = finished_run(tmp_path, some)
    weights = read(run, tmp_path).data[0]["weights"]
    codes = unpacked(weights["codes"][0][0], (6, 5))
    assert (np.sum(codes == ABSENT, axis=1) == 3).all()
    horizons = unpacked(weights["horizons"][0], (6, 5))
    np.testing.assert_array_equal(horizons == 0, codes == ABSENT)


def test_long_runs_are_thinned(
    run: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hewfl.report.page_data.POINTS", 3)
    monkeypatch.setattr("hewfl.report.page_data.WEIGHTS", 3 * 5 * 4)
    (data,) = read(run, tmp_path).data
    assert data["rounds"] == [0, 3, 6]
    assert len(data["methods"][0]["curves"]["gap"][0]) == 3
    assert data["weights"]["seeds"] == [0]
    assert data["weights"]["rounds"] == [1, 3, 4, 6]


def test_values_that_are_not_finite_are_left_out(copy: Folder, tmp_path: Path) -> None:
    trace = copy.of_seed(0) / "trace.jsonl"
    lines = trace.read_text(encoding="utf-8").splitlines()
    last = json.loads(lines[-1])
    last |= {"objective": math.inf, "clients": [], "horizons": [], "weights": []}
    lines[-1] = json.dumps(last)
    trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (data,) = read(copy, tmp_path).data
    assert data["methods"][2]["curves"]["objective"][0][-1] is None


# ------------------------------------------------------------------ words


def test_the_rule_is_compared_with_each_other_one(run: Folder, tmp_path: Path) -> None:
    text = "".join(read(run, tmp_path).text)
    ranking = rank_methods(results_of(run), "test_accuracy")
    found = ranking.compare("HEW", HOSTILE)
    caption = "test accuracy of HEW minus that of each other rule; more is better"
    assert caption in text
    assert f"{HOSTILE}{interval_text(found)}{seeds_text(found)}" in text


def test_command_summary_and_page_agree(tmp_path: Path) -> None:
    """On numbers whose p is below 5 % alone and above it among six pairs."""
    methods = [
        {"method": "FedAvg", "label": label, "step_scale": 0.1} for label in "abcd"
    ]
    given = table() | {"seeds": [0, 1, 2, 3, 4], "audit_every": 0, "methods": methods}
    run = finished_run(tmp_path, spec_from_table(given))
    logs = [[0, 3, -2, 1, -1], [2, 6, 1, 1, 2], [3, 2, 2, 0, 4], [12, 8, 9, 13, 10]]
    ends = np.exp(0.01 * np.array(logs) - 1)
    for s, seed in enumerate(run.spec.seeds):
        trace = run.of_seed(seed) / "trace.jsonl"
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        for k, line in enumerate(lines[-4:]):
            line["objective"] = line["pooled"] = ends[k, s]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run.of_seed(seed) / "manifest.json").unlink()
    for name in ("summary.json", "checksums.json"):
        (run.path / name).unlink()
    finish(run)
    done = CliRunner().invoke(app, ["resume", str(run.path)])
    assert done.exit_code == 0, done.output
    pairs = {
        (p["first"], p["second"]): from_json(p)
        for p in run.summary["pairs"]
        if p["quantity"] == "objective"
    }
    alone = compare(ends[0], ends[1])
    assert alone.verdict == "better"
    assert alone.p < 0.05 < pairs["a", "b"].corrected_p
    assert pairs["a", "b"].verdict == "undecided"
    assert pairs["a", "d"].verdict == "better"
    page = page_of([run], tmp_path)
    for (first, second), c in pairs.items():
        assert f"{first} against {second}: {verdict_text(c)}" in done.output
        title = html.escape(f"{first} against {second}: {reason_text(c)}")
        cell = f'title="{title}"><span><span class="{c.verdict}">'
        assert html.unescape(cell) in html.unescape(page)


def test_the_certificate_is_told_in_words(copy: Folder, tmp_path: Path) -> None:
    text = "".join(read(copy, tmp_path).text)
    assert "of HEW was checked 6 times, over all seeds, and held every time" in text
    file = copy.path / "summary.json"
    summary = read_json(file)
    summary["methods"][0]["audit"]["violations"] = 2
    write_json(file, summary)
    page = read(copy, tmp_path)
    assert "failed 2 times" in "".join(page.text)
    summary["methods"][0]["audit"] = summary["methods"][1]["audit"] = None
    write_json(file, summary)
    assert "was checked" not in "".join(read(copy, tmp_path).text)


def test_the_edge_of_a_grid_is_pointed_out(copy: Folder, tmp_path: Path) -> None:
    file = copy.path / "tuning.json"
    choices = read_json(file)
    for edge, said in ((["amplitude"], "HEW (amplitude)"), ([], "inside its grid")):
        choices[0]["at_edge"] = edge
        write_json(file, choices)
        text = "".join(read(copy, tmp_path).text)
        assert said in text
    assert "3 trials" in text


def test_trials_are_told_as_measured(copy: Folder, tmp_path: Path) -> None:
    tune = replace(
        copy.spec.tune, metric="test_accuracy", tie_tolerance=0.1, screen_rounds=2
    )
    accurate = Folder(copy.path, replace(copy.spec, tune=tune))
    file = copy.path / "tuning.json"
    (choice,) = read_json(file)
    trial = {"parameters": {"amplitude": 0.5}, "scores": [0.875, None]}
    both = trial | {"tie_scores": [0.25, 0.5]}
    write_json(file, [choice | {"table": [both], "screen": [both]}])
    text = "".join(read(accurate, tmp_path).text)
    assert text.count("amplitude = 0.50.875diverged0.250.5") == 2
    assert "1 first trials, after 2 rounds" in text
    assert "test_accuracy, seed 1objective, seed 0" in text
    write_json(file, [choice | {"table": [both]}])
    assert "first trials" not in "".join(read(accurate, tmp_path).text)


def test_a_method_that_diverged_everywhere_is_worse(
    copy: Folder, tmp_path: Path
) -> None:
    for seed in copy.spec.seeds:
        trace = copy.of_seed(seed) / "trace.jsonl"
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        lines[-3] |= {
            "objective": None
        }  # HEW, the first of three, after the last round
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = "".join(read(copy, tmp_path).text)
    assert "no seed in which both are finiteahead in 0 of 2 seeds—▼ worse" in text
    assert "▼ worse diverged in 2 of 2" in text


def masses(copy: Folder, mass: dict[str, float], tmp_path: Path) -> str:
    """The page of a run whose first method ends with such weights by horizon."""
    file = copy.path / "summary.json"
    summary = read_json(file)
    for method in summary["methods"]:
        found = {h: {"mean": w, "std": None, "seeds": [w]} for h, w in mass.items()}
        method["mass_by_horizon"] = found
    write_json(file, summary)
    return "".join(read(copy, tmp_path).text)


def test_parts_of_epochs_have_columns(copy: Folder, tmp_path: Path) -> None:
    text = masses(copy, {"2": 0.25, "10": 0.25, "0.5": 0.5}, tmp_path)
    assert "H = 0.5H = 2H = 10sum" in text
    assert "0.50.250.251" in text
    assert "do not sum to one" not in text


def test_weights_that_do_not_sum_to_one_are_explained(
    copy: Folder, tmp_path: Path
) -> None:
    text = masses(copy, {"1": 0.75, "2": 0.75}, tmp_path)
    assert f"The weights of HEW, HewHet and {HOSTILE} do not sum to one" in text


def test_many_horizons_share_columns(copy: Folder, tmp_path: Path) -> None:
    text = masses(copy, {str(h): 0.0625 for h in range(1, 17)}, tmp_path)
    assert "H = 1 to 2H = 3 to 4" in text
    assert text.count(" to ") >= 8


def test_divergence_is_said(copy: Folder, tmp_path: Path) -> None:
    file = copy.path / "summary.json"
    summary = read_json(file)
    summary["methods"][1]["diverged"] = [1]
    write_json(file, summary)
    text = "".join(read(copy, tmp_path).text)
    assert "HewHet diverged, left out of its mean: seeds 1." in text


def test_spec_and_environment_are_there(run: Folder, tmp_path: Path) -> None:
    text = "".join(read(run, tmp_path).text)
    assert "curvature_ratio = 1.5" in text
    assert read_json(run.path / "times.json")["numpy"] in text


def test_several_runs_share_a_page(run: Folder, copy: Folder, tmp_path: Path) -> None:
    page = Reader(page_of([run, copy], tmp_path))
    assert len(page.data) == 2
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    ids = {a["id"] for _, a in page.tags if "id" in a}
    assert {str(link)[1:] for link in links} <= ids
    assert {"run-0", "run-1", "short", "run-1-pairs"} <= ids
    text = "".join(page.text)
    verb = "(beats|loses to|equals|cannot be told apart from)"
    begin = f"HEW {verb} {re.escape(HOSTILE)} on test accuracy in "
    assert re.search(begin + r"\d of 2 panels", text)
    assert ("div", "panels") not in [(tag, a.get("data-view")) for tag, a in page.tags]
    assert "Ranking by training objective over panels" in text


def test_the_page_begins_with_the_finding(run: Folder, tmp_path: Path) -> None:
    page = page_of([run], tmp_path)
    first = page[page.index("<main>") : page.index('data-view="weights"')]
    text = " ".join("".join(Reader(first).text).split())
    assert text.index("HEW ") < text.index("on test accuracy")
    results = results_of(run)
    for label in ("HEW", HOSTILE):  # the first of the spec, and the average
        values = 100 * results.final(label, "test_accuracy")
        assert f"{values.mean():.1f} %" in text
        assert f"± {values.std(ddof=1):.1f} %, mean of 2 seeds" in text
    assert first.count('class="number"') == 2
    compared = text[text.index("What was compared:") :]
    assert "digits (" in compared
    assert "5 clients, Dirichlet partition with α = 0.5" in compared
    assert "1, 2 or 4 local steps, batches of 4" in compared
    assert "no faulty clients" in compared
    assert "6 rounds, 2 seeds" in compared


def with_scenario(folder: Folder, faults: list[dict[str, Any]]) -> Folder:
    """A run whose spec has faults of five clients, and whose trace names the bad."""
    scenario = {"faults": faults}
    clients = replace(folder.spec.clients, scenario=scenario)
    count = sum(round(fault["share"] * 5) for fault in faults)
    for seed in folder.spec.seeds:
        trace = folder.of_seed(seed) / "trace.jsonl"
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        for line in lines:
            line["scenario"] = {"faulty": list(range(4, 4 - count, -1))}
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = (folder.path / "tuned.toml").read_text()
    fields = "; ".join(str(fault) for fault in faults)
    assert "scenario" not in text, fields
    tuned = replace(folder.tuned or folder.spec, clients=clients)
    (folder.path / "tuned.toml").write_text(write_spec(tuned))
    (folder.path / "spec.toml").write_text(
        write_spec(replace(folder.spec, clients=clients))
    )
    (folder.path / "summary.json").unlink()
    return open_folder(folder.path)


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (
            [{"kind": "RandomLabels", "share": 0.4}],
            "2 of 5 clients have random labels: ",
        ),
        (
            [
                {"kind": "ScaledUpdates", "share": 0.2, "factor": -1.0},
                {"kind": "ALIE", "share": 0.2},
            ],
            "1 of 5 clients sends updates with the opposite sign and 1 of 5 clients "
            "attacks by ALIE: ",
        ),
    ],
)
def test_faults_are_told_first(
    copy: Folder, tmp_path: Path, faults: list[dict[str, Any]], said: str
) -> None:
    page = read(with_scenario(copy, faults), tmp_path)
    text = "".join(page.text)
    assert said in text
    assert "(3 and 4 in seed 0)" in text
    assert page.data[0]["weights"]["bad"] == [[3, 4], [3, 4]]


def test_no_folder_of_the_machine_is_on_the_page(copy: Folder, tmp_path: Path) -> None:
    name = str(tmp_path / "secret" / "mine.csv")
    spec = replace(copy.spec, data=replace(copy.spec.data, name=name))
    page = page_of([Folder(copy.path, spec)], tmp_path)
    assert "…/mine.csv" in page
    assert str(tmp_path) not in page


def test_every_pair_is_in_the_matrix(run: Folder, tmp_path: Path) -> None:
    page = page_of([run], tmp_path)
    matrices = "".join(re.findall(r'<table class="matrix".*?</table>', page, re.DOTALL))
    verdicts = "better|worse|undecided|equal|self"
    cells = re.findall(f'<span class="({verdicts})"', matrices)
    how = "row (?:minus|divided by) column"
    quantities = len(re.findall(f"<caption>[^<]*{how}", page))
    assert quantities >= 2
    assert len(cells) == 9 * quantities
    assert cells.count("self") == 3 * quantities
    assert "? undecided" in page
    assert "= undecided" not in page


def test_equal_means_are_all_bold(copy: Folder, tmp_path: Path) -> None:
    for seed in copy.spec.seeds:
        trace = copy.of_seed(seed) / "trace.jsonl"
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        for line in lines[-3:]:
            line["metrics"]["test_accuracy"] = 0.75 + 0.1 * seed
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of([copy], tmp_path)
    assert page.count("<strong>80.0 ± 7.1 %</strong>") == 6  # in both tables
    assert "HEW equals HewHet and &lt;b&gt;" in page
    assert "the same in every seed" in page


def test_a_target_is_asked_for(run: Folder, tmp_path: Path) -> None:
    write_report([run], tmp_path / "a.html", targets={"objective": 1.5})
    text = (tmp_path / "a.html").read_text("utf-8")
    assert "training objective of 1.5, as asked" in text
    with pytest.raises(InvalidInputError, match="`targets` must be of objective, "):
        write_report([run], tmp_path / "a.html", targets={"speed": 1.0})


def test_an_unfinished_run_is_told_as_far_as_it_is(
    copy: Folder, tmp_path: Path
) -> None:
    (copy.path / "summary.json").unlink()
    trace = copy.of_seed(1) / "trace.jsonl"
    lines = trace.read_text(encoding="utf-8").splitlines(keepends=True)
    trace.write_text("".join(lines[:14]) + lines[14][:9], encoding="utf-8")
    file = tmp_path / "report.html"
    assert write_report([copy], file, refresh=3.0) is False
    page = Reader(file.read_text("utf-8"))
    told = "Not finished. So far: 6 of 6 rounds of 1 of 2 seeds."
    assert told in "".join(page.text)
    assert page.data[0]["seeds"] == [0]
    assert [a["data-refresh"] for tag, a in page.tags if tag == "body"] == ["3"]
    shutil.rmtree(copy.of_seed(0))
    write_report([copy], file)
    text = "".join(Reader(file.read_text("utf-8")).text)
    assert "So far: 3 of 6 rounds of 1 of 2 seeds." in text
    (copy.path / "tuned.toml").unlink()
    write_report([copy], file)
    assert "nothing to show yet. It is being tuned." in file.read_text("utf-8")


def test_a_page_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="`folders` must be at least one run"):
        write_report([], tmp_path / "report.html")


def test_tuning_on_the_test_part_is_pointed_out(copy: Folder, tmp_path: Path) -> None:
    assert "Tuned on the test part" not in "".join(read(copy, tmp_path).text)
    tune = replace(copy.spec.tune, metric="test_loss")
    leaking = Folder(copy.path, replace(copy.spec, tune=tune))
    assert "Tuned on the test part" in "".join(read(leaking, tmp_path).text)
