"""What is published can be run again, and what the page says is in the files."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproduce.server_steps import BEGIN
from reproduce.specs import DATA, REGIMES, extended_spec, main_spec, wide_spec

from hewfl.experiments.build_problem import (
    build_federation,
    build_problem,
    entries_of,
    start_of,
)
from hewfl.experiments.spec import Spec, read_spec
from hewfl.experiments.spec_lint import refuse_unused_fields
from hewfl.experiments.spec_sections import DataSpec
from hewfl.simulation.engine import simulate

ROOT = Path(__file__).resolve().parents[2] / "docs" / "results"
SPECS = sorted(ROOT.rglob("spec.toml")) + sorted(ROOT.rglob("tuned.toml"))
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.\d{3,}(?![\w.])")
"""With three decimals or more: what only a measurement can say."""


def name(file: Path) -> str:
    return str(file.relative_to(ROOT).parent)


GRIDS = {"main": main_spec, "wide": wide_spec, "extended": extended_spec}


def test_every_published_spec_can_be_read() -> None:
    assert len(SPECS) > 100
    for file in SPECS:
        assert read_spec(file).is_tuned or file.name == "spec.toml"


@pytest.fixture(scope="module")
def tuned() -> dict[Path, Spec]:
    return {file: read_spec(file) for file in SPECS if file.name == "tuned.toml"}


def test_tuned_specs_have_no_field_without_effect(tuned: dict[Path, Spec]) -> None:
    assert len(tuned) > 20
    for spec in tuned.values():
        assert spec.is_tuned
        refuse_unused_fields(spec)


@pytest.mark.parametrize("part", GRIDS)
def test_specs_of_the_grids_are_those_that_hewfl_makes(part: str) -> None:
    """`python -m reproduce paper` runs again what is published."""
    for data in DATA:
        for regime in REGIMES:
            file = ROOT / part / "panels" / f"{data}-{regime}" / "spec.toml"
            assert read_spec(file) == GRIDS[part](data, regime)


def test_tuned_methods_do_one_round(tuned: dict[Path, Spec]) -> None:
    """Those of all softmax panels at once, on other data: they share every product."""
    panels = [spec for spec in tuned.values() if not spec.problem.is_module]
    (first, *_) = panels
    methods = [method for spec in panels for method in spec.methods]
    clients = replace(first.clients, n=4, batch_size=2, partition="iid")
    clients = replace(clients, alpha=0.2, min_samples=1)
    spec = replace(first, data=DataSpec(subsample=60), clients=clients)
    problem = build_problem(spec, 0)
    entries = entries_of(spec, methods, problem.smoothness, 1)
    trace = simulate(problem, build_federation(spec), entries, rounds=1, seed=0)
    last = [trace.of(k)[-1] for k in range(len(entries))]
    assert all(np.isfinite(record.objective or np.nan) for record in last)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [f for f in SPECS if f.name == "tuned.toml" and "panels" not in f.parts],
    ids=name,
)
def test_tuned_modules_do_one_round(file: Path, tmp_path: Path) -> None:
    spec = read_spec(file)
    width = 784 if spec.problem.model == "medium_cnn" else 768
    rng = np.random.default_rng(0)
    made = tmp_path / "made.npz"
    labels = np.arange(120) % 4
    np.savez(made, X=rng.random((120, width), dtype=np.float32), y=labels)
    data = DataSpec(str(made), validation_fraction=0.2)
    clients = replace(spec.clients, n=3, min_samples=1, batch_size=8, participation=2)
    small = replace(spec, data=data, clients=clients, device="numpy")
    problem = build_problem(small, 0)
    entries = entries_of(small, small.methods, 1 / small.problem.learning_rate, 1)
    trace = simulate(
        problem,
        build_federation(small),
        entries,
        rounds=1,
        seed=0,
        start=start_of(problem),
    )
    last = [trace.of(k)[-1] for k in range(len(entries))]
    assert all(np.isfinite(record.metrics["test_loss"]) for record in last)


DOCS = ROOT.parent


def sections() -> Iterator[tuple[str, str]]:
    """The page, section by section: the text, and that of the files it names."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    for text in re.split(r"^#+ ", page, flags=re.MULTILINE)[1:]:
        folders = set(re.findall(r"[`(]([a-z][a-z-]*)/", text))
        files = [
            file
            for folder in sorted(folders)
            for file in sorted((ROOT / folder).rglob("*"))
            if file.suffix in (".md", ".csv") or file.name == "times.json"
        ]
        yield text, "\n".join(file.read_text(encoding="utf-8") for file in files)


def pages() -> Iterator[tuple[str, str]]:
    """Pages about one study each, and the tables that the study wrote."""
    tables = sorted((ROOT / "robustness").glob("*.md"))
    texts = [file.read_text(encoding="utf-8") for file in tables]
    for name in ("choosing.md", "results/robustness.md"):
        yield (DOCS / name).read_text(encoding="utf-8"), "\n".join(texts)
    attacks = (ROOT / "byzantine" / "results.md").read_text(encoding="utf-8")
    yield (ROOT / "byzantine.md").read_text(encoding="utf-8"), attacks
    server_step = (ROOT / "server_step" / "results.md").read_text(encoding="utf-8")
    seen = [f"{value:.5f}" for value in measured_steps()]
    pages = (file.read_text(encoding="utf-8") for file in DOCS.rglob("*.md"))
    page = next(text for text in pages if BEGIN in text)
    yield page.partition("## What was measured")[2], "\n".join([server_step, *seen])


def measured_steps() -> Iterator[float]:
    """Means and ranges over the seeds of all that measured steps were asked."""
    for file in sorted((DOCS.parent / "reproduce" / "results").glob("measured_*")):
        for seeds in json.loads(file.read_text(encoding="utf-8")).values():
            for name in seeds[0]:
                values = [seed[name] for seed in seeds if seed[name] is not None]
                yield from (float(np.mean(values)), min(values), max(values))


@pytest.mark.parametrize(
    ("text", "source"), [*sections(), *pages()], ids=lambda text: text[:24]
)
def test_numbers_of_the_page_are_in_the_files_it_names(text: str, source: str) -> None:
    """As they stand there, or rounded; a sign, where the page has one, is theirs."""
    given = {float(n) for n in numbers(source)}
    signed, plain = np.array(sorted(given)), np.array(sorted(map(abs, given)))
    missing = [
        n
        for n in sorted(numbers(text))
        if not np.any(
            np.abs((signed if n[0] in "+-" else plain) - float(n))
            <= 0.5001 * 10.0 ** -decimals(n)
        )
    ]
    assert not missing


def numbers(text: str) -> set[str]:
    return set(NUMBER.findall(text.replace("−", "-")))


def decimals(number: str) -> int:
    return len(number.partition(".")[2])
