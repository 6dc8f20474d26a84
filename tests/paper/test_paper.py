"""PAPER.md tells the truth: symbols, tags, lines, labels, errata and keys.

Each test collects all faults before it fails, so one run shows all there is to mend.
"""

import importlib
import inspect
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "hewfl").rglob("*.py"))

# Facts about the paper, counted in its source.
LABELS = (Path(__file__).parent / "labels.txt").read_text("utf-8").split()
ALGORITHM_LINES = {1: 18, 2: 18, 3: 11, 4: 10}
STATEMENTS = {
    "2": 3, "3": 4, "4": 6,
    "A": 9, "B": 37, "C": 30, "D": 14, "E": 33, "G": 8, "H": 2,
}  # fmt: skip
FIGURES = [f"Figure {k}" for k in range(1, 7)]
ERRATA = [f"E-{k:02d}" for k in range(1, 34)] + [
    *(f"T{k}" for k in range(1, 10)),
    "R",
    "K1",
    "K2",
]

SPAN = re.compile(r"`([^`]+)`")
PATH = r"(?:hewfl|reproduce)(?:\.\w+)+"
SYMBOL = re.compile(rf"`({PATH})`")
SYMBOL_LIST = rf"`{PATH}`(?:, `{PATH}`)*"
PENDING = r"issue pending(?:\. [^`]+)?"
NOT_CODE = r"not code: \S+(?: \S+){0,7}"
CELL = re.compile(rf"{SYMBOL_LIST}(?:; {PENDING})?|{PENDING}|{NOT_CODE}")
TAG = re.compile(r"Alg\. (\d+), l\. (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)")
KEY = re.compile(r"\[([A-Z][A-Za-z]+\d{4}[a-z]?)\]")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, with the headings it stands under."""

    chapter: str
    section: str
    head: tuple[str, ...]
    cells: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{self.section or self.chapter}: {self.cells[0]} … {self.cells[-1]}"


def split(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def read_rows(text: str) -> list[Row]:
    """Every row of every table; a table starts with its head and a rule."""
    chapter = section = ""
    head: tuple[str, ...] = ()
    rows: list[Row] = []
    for line in text.splitlines():
        if line.startswith("## "):
            chapter, section = line[3:].strip(), ""
        elif line.startswith("### "):
            section = line[4:].strip()
        if not line.startswith("|"):
            head = ()
        elif not head:
            head = split(line)
        elif set(line) - set("|-"):
            rows.append(Row(chapter, section, head, split(line)))
    return rows


PAGE = (ROOT / "PAPER.md").read_text("utf-8")
ROWS = read_rows(PAGE)
CHAPTERS = {row.chapter: [r for r in ROWS if r.chapter == row.chapter] for row in ROWS}
MAPPING = [row for row in ROWS if row.chapter != "Bibliography"]
LINES = [
    (int(re.sub(r"\D", "", row.section.partition(":")[0])), int(row.cells[0]), row)
    for row in CHAPTERS["Algorithms"]
]
KEYS = [key for row in CHAPTERS["Bibliography"] for key in KEY.findall(row.cells[0])]


def resolve(path: str) -> object | None:
    """The object at a dotted path, or None: modules first, then attributes."""
    names = path.split(".")
    result: object = importlib.import_module(names[0])
    for k, name in enumerate(names[1:], start=2):
        if isinstance(result, ModuleType) and not hasattr(result, name):
            module = ".".join(names[:k])
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:  # there, but broken
                    raise
        if not hasattr(result, name):
            return None
        result = getattr(result, name)
    return result


def knows(symbol: str, name: str) -> bool:
    """Whether a name is an argument, a field or the last part of a symbol."""
    owner = resolve(symbol)
    arguments = inspect.signature(owner).parameters if callable(owner) else ()
    return name in (symbol.rpartition(".")[2], *dir(owner), *arguments)


def expand(lines: str) -> Iterator[int]:
    """From «1, 4-6» to 1, 4, 5, 6."""
    for part in lines.split(", "):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def read_tags(file: Path) -> set[tuple[int, int]]:
    """Pairs (algorithm, line) that the comments of a source file name."""
    with file.open("rb") as source:
        tokens = list(tokenize.tokenize(source.readline))
    return {
        (int(algorithm), line)
        for token in tokens
        if token.type == tokenize.COMMENT
        for algorithm, lines in TAG.findall(token.string)
        for line in expand(lines)
    }


def source_of(symbol: str) -> Path:
    module = sys.modules[str(getattr(resolve(symbol), "__module__", "hewfl"))]
    return Path(str(module.__file__))


def assert_none(faults: Iterable[object]) -> None:
    result = [str(fault) for fault in faults]
    assert not result, "\n".join(["", *result])


# The page itself


def test_chapters_are_all_there() -> None:
    expected = "Notation,Algorithms,Statements,Figures and experiments,Departures"
    assert list(CHAPTERS) == [*expected.split(","), "Bibliography"]


def test_rows_are_as_long_as_their_heads() -> None:
    assert_none(row for row in ROWS if len(row.cells) != len(row.head))


def test_rows_say_where_their_code_is() -> None:
    assert_none(row for row in MAPPING if row.head[-1] != "symbol")
    assert_none(row for row in MAPPING if not CELL.fullmatch(row.cells[-1]))


# Symbols


def test_symbols_exist() -> None:
    symbols = set(SYMBOL.findall(PAGE))
    assert symbols
    assert_none(symbol for symbol in sorted(symbols) if resolve(symbol) is None)


def test_pending_symbols_do_not_exist_yet() -> None:
    """A name promised after «issue pending» is due in code font once it exists."""
    promises = {
        name
        for row in MAPPING
        for name in re.findall(
            r"hewfl(?:\.\w+)+", row.cells[-1].partition("issue pending")[2]
        )
    }
    assert_none(
        name
        for name in sorted(promises)
        if not isinstance(resolve(name), ModuleType | None)
    )


def test_names_in_the_notation_are_the_names_in_the_code() -> None:
    assert_none(
        f"{symbol} knows no {name}"
        for row in CHAPTERS["Notation"]
        for name in SPAN.findall(row.cells[1])
        for symbol in SYMBOL.findall(row.cells[-1])
        if not knows(symbol, name)
    )


# Algorithms


def test_algorithms_have_every_line_in_order() -> None:
    assert [(algorithm, line) for algorithm, line, _ in LINES] == [
        (algorithm, line)
        for algorithm, last in ALGORITHM_LINES.items()
        for line in range(1, last + 1)
    ]


def test_tags_in_the_source_name_lines_of_the_paper() -> None:
    lines = {(algorithm, line) for algorithm, line, _ in LINES}
    assert_none(
        f"{file.name}: # Alg. {algorithm}, l. {line}"
        for file in SOURCES
        for algorithm, line in sorted(read_tags(file) - lines)
    )


def test_lines_with_a_symbol_are_tagged_in_its_source() -> None:
    assert_none(
        f"# Alg. {algorithm}, l. {line} is missing beside {symbol}"
        for algorithm, line, row in LINES
        for symbol in SYMBOL.findall(row.cells[-1])
        if (algorithm, line) not in read_tags(source_of(symbol))
    )


@pytest.mark.parametrize(
    ("comment", "lines"),
    [
        ("# Alg. 4, l. 2", [(4, 2)]),
        ("# why; Alg. 4, l. 4-6", [(4, 4), (4, 5), (4, 6)]),
        ("# Alg. 4, l. 1, 10", [(4, 1), (4, 10)]),
        ("# Alg. 2, l. 16, Alg. 3, l. 10", [(2, 16), (3, 10)]),
        ("'# Alg. 4, l. 2 in a string'", []),
    ],
)
def test_tags_are_read(
    tmp_path: Path, comment: str, lines: list[tuple[int, int]]
) -> None:
    file = tmp_path / "tagged.py"
    file.write_text(f"x = 1  {comment}\n" if comment[0] == "#" else comment, "utf-8")
    assert read_tags(file) == set(lines)


# Statements, figures, errata, keys


def test_labels_are_those_of_the_paper() -> None:
    kinds = {label.partition(":")[0] for label in LABELS}
    shown = [span for span in SPAN.findall(PAGE) if span.partition(":")[0] in kinds]
    assert_none(set(shown) - set(LABELS))
    mapped = SPAN.findall(PAGE.partition("## Departures")[0])
    assert_none(label for label in LABELS if label not in mapped)


def test_statements_have_all_their_code() -> None:
    """Where the paper says something to compute, nothing is owed any more."""
    owed = [*CHAPTERS["Notation"], *CHAPTERS["Statements"], *CHAPTERS["Departures"]]
    assert_none(
        row
        for row in owed
        if "issue pending" in row.cells[-1]
        and (row.chapter == "Statements" or "hewfl.theory" in row.cells[-1])
    )
    labels = {x for row in CHAPTERS["Statements"] for x in SPAN.findall(str(row.cells))}
    kinds = ("th", "thm", "lem", "prop", "cor", "def", "ass", "eq")
    assert_none(
        label
        for label in LABELS
        if label.partition(":")[0] in kinds and label not in labels
    )


def test_theory_names_the_statements_it_holds() -> None:
    """A statement mapped to hewfl.theory stands with its label in its source."""
    assert_none(
        f"{label} is nowhere in the sources of {row.cells[-1]}"
        for row in CHAPTERS["Statements"]
        for label in SPAN.findall(row.cells[1])
        if "`hewfl.theory." in row.cells[-1]
        and not any(
            label in source_of(symbol).read_text("utf-8")
            for symbol in SYMBOL.findall(row.cells[-1])
        )
    )


def test_sections_have_every_statement_in_order() -> None:
    numbers = [row.cells[0] for row in CHAPTERS["Statements"]]
    assert [number for number in numbers if number != "text"] == [
        f"{section}.{k}"
        for section, last in STATEMENTS.items()
        for k in range(1, last + 1)
    ]


def test_figures_and_experiments_are_all_there() -> None:
    items = [row.cells[0] for row in CHAPTERS["Figures and experiments"]]
    assert items[: len(FIGURES)] == FIGURES
    assert {"Main grid", "DistilBERT line", "CNN line"} <= set(items)


def test_departures_are_all_there() -> None:
    assert [row.cells[0] for row in CHAPTERS["Departures"]] == ERRATA


def test_keys_cited_are_in_the_bibliography() -> None:
    assert len(KEYS) == len(set(KEYS))
    assert set(KEY.findall(PAGE)) == set(KEYS)
    assert_none(
        f"{file.name} cites [{key}]"
        for file in SOURCES
        for key in KEY.findall(file.read_text("utf-8"))
        if key not in KEYS
    )
