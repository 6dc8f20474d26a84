"""The galleries of rules and attacks: formula, reference, a line of code and of a spec.

A page has the line `<!-- gallery: rules -->` or `<!-- gallery: attacks -->` where its
cards go. They are made of the docstrings, so that a new rule has its card.
"""

import html
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from docs_tools.pages import ROOT
from hewfl.aggregators import PREAGGREGATIONS, find_maker
from hewfl.cli.method_list import read_sheet, split_docstring
from hewfl.cli.references import REFERENCES
from hewfl.experiments.spec_sections import FAULTS

PLACE = re.compile(r"^<!-- gallery: (\w+) -->$", re.MULTILINE)
LISTED = re.compile(r"^::: hewfl\.(?:\w+\.)*(\w+)$", re.MULTILINE)
OWN = "This library"
RULES: Mapping[str, tuple[str, ...]] = {
    "Averages and exact weights": (
        *("mean", "size-weighted", "step-weighted", "normalized-mean"),
        *("power-weights", "exact", "fedexp", "fedadp", "qfedavg", "fedmgda"),
        "fedaware",
    ),
    "Robust rules of the literature": (
        *("geometric-median", "coordinate-median", "trimmed-mean", "krum"),
        *("multi-krum", "meamed", "bulyan", "mda", "caf", "dnc", "signguard"),
        *("fltrust", "centered-clipping"),
    ),
    "Robust rules of this library": (
        *("trust", "root-weights", "majority-sieve", "sieve", "agreement"),
        *("disagreement", "oracle"),
    ),
    "Pre-aggregations": tuple(PREAGGREGATIONS),
}
"""Names of the rules by section; a test compares them with the registry."""
BASE = "geometric-median"
"""The rule behind a pre-aggregation in its line of code."""


@dataclass(frozen=True)
class Card:
    """One rule or attack of a gallery.

    Attributes:
        name: as in a spec.
        sentence: what it does.
        formula: lines of text.
        reference: the work that it is from.
        link: of its docstring, from a page in docs.
        code: one line of Python.
        spec: one line of TOML.
    """

    name: str
    sentence: str
    formula: str
    reference: str
    link: str
    code: str
    spec: str


def rules() -> dict[str, list[Card]]:
    """The cards of the aggregators and pre-aggregations, by section."""
    return {title: [_rule(name) for name in names] for title, names in RULES.items()}


def attacks() -> dict[str, list[Card]]:
    """The cards of faults and attacks, by section."""
    cards = {name: _attack(name, record) for name, record in FAULTS.items()}
    seeing = {n for n, r in FAULTS.items() if r.__module__.endswith("omniscient")}
    return {
        "Faults: clients do not look at each other": [
            card for name, card in cards.items() if name not in seeing
        ],
        "Attacks: clients see all updates and work together": [
            card for name, card in cards.items() if name in seeing
        ],
    }


GALLERIES = {"rules": rules, "attacks": attacks}


def expanded(text: str) -> str:
    """A page with its galleries in place of the lines that ask for them."""
    return PLACE.sub(lambda match: _section_text(GALLERIES[match[1]]()), text)


def _rule(name: str) -> Card:
    sheet = read_sheet(name)
    if name in PREAGGREGATIONS:
        record = PREAGGREGATIONS[name]
        code = f"Pipeline({record.__name__}(), GeometricMedian())"
        spec = f'method = "{name}+{BASE}"'
    else:
        record, fixed = find_maker(name)
        given = ", ".join(f'{key}="{value}"' for key, value in fixed.items())
        code, spec = f"{record.__name__}({given})", f'method = "{name}"'
    reference = sheet.paper if sheet.paper in REFERENCES.values() else OWN
    formula = formula_of(sheet.formulas) or sheet.sentence.rpartition(": ")[2].rstrip(
        "."
    )
    return Card(
        *(name, sheet.sentence, formula, reference, _link(record)),
        *(f"Method(LocalSGD(0.1), {code})", spec),
    )


def _attack(name: str, record: Any) -> Card:
    sentence, key, rest = split_docstring(record)
    inner = {"base": "IPM(0.2)"} if hasattr(record, "base") else {}
    fields = {"choices": "(1, 2, 8)"} if name == "HiddenBatches" else {"share": "0.2"}
    given = inner or fields
    code = ", ".join(given.values())
    table = {
        "base": 'base = { kind = "IPM", share = 0.2 }',
        "choices": "choices = [1, 2, 8]",
        "share": "share = 0.2",
    }
    spec = ", ".join([f'kind = "{name}"', *(table[field] for field in given)])
    return Card(
        *(name, sentence, formula_of(rest), REFERENCES.get(key, OWN), _link(record)),
        *(f"Scenario(({name}({code}),))", f"faults = [{{ {spec} }}]"),
    )


def formula_of(text: str) -> str:
    """The indented paragraphs of a docstring, without their common indent."""
    paragraphs = re.split(r"\n\s*\n", text)
    indented = [p for p in paragraphs if re.fullmatch(r"(?:    .*\n?)+", p)]
    return "\n".join(textwrap.dedent(p).rstrip() for p in indented)


def _link(record: Any) -> str:
    """The place of a class in the reference."""
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        text = page.read_text("utf-8")
        for match in LISTED.finditer(text):
            if match[1] == record.__name__:
                anchor = match[0].removeprefix("::: ")
                return f"reference/{page.name}#{anchor}"
    raise LookupError(f"{record.__name__} is on no page of docs/reference")


def _section_text(sections: Mapping[str, list[Card]]) -> str:
    return "\n".join(
        "\n".join([f"## {title}\n", *(_card_text(card) for card in cards)])
        for title, cards in sections.items()
    )


def _card_text(card: Card) -> str:
    return f"""<div class="card" markdown>

### {card.name}

{card.sentence}

```text
{card.formula}
```

`{card.code}`, in a spec `{card.spec}`

{html.escape(card.reference.rstrip("."))}. [All options]({card.link})

</div>
"""
