"""The first screen of a report: a sentence, two numbers, and what was compared."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, final

from hewfl.core.array_types import Float64
from hewfl.core.plugins import short_name
from hewfl.core.validation import Array
from hewfl.experiments.plots import QUANTITIES
from hewfl.experiments.results import LARGER_IS_BETTER
from hewfl.experiments.statistics import Ranking
from hewfl.report.page_data import PageRun, faulty_clients

FAULTS = {
    "RandomLabels": "have random labels",
    "FlippedLabels": "have flipped labels",
    "RandomUpdates": "send random updates",
    "ConstantUpdates": "send one common wrong update",
    "GrowingNoise": "send growing noise",
    "StaleUpdates": "send stale updates",
    "Drift": "send one common wrong direction",
    "Gaussian": "send Gaussian noise",
    "HiddenBatches": "hide their batch sizes",
}
"""What faulty clients do; other kinds are attacks with a name."""
VERBS = {
    "better": ("beats", "all"),
    "worse": ("loses to", "all"),
    "undecided": ("cannot be told apart from", "any of the"),
    "equal": ("equals", "all"),
}
"""What a rule does to those it is compared with, by the verdict on it, and how a
sentence names all of them."""
MOST_NAMED = 3
"""Rules named in a sentence; more are counted."""


@final
@dataclass(frozen=True, slots=True)
class Number:
    """A large number of the first screen.

    Attributes:
        value: as text.
        label: whose it is.
        note: how sure it is.
        method: whose line stands before the label; None for none.
    """

    value: str
    label: str
    note: str
    method: str | None = None


def headline(run: PageRun) -> str:
    """What the run shows, in one sentence: the author's rule against all others."""
    ranking, rule = run.ranking, run.rule
    begin, name = _setting(run), QUANTITIES[ranking.quantity]
    if not (ranking.finals or ranking.limits):
        return f"{begin}{rule} ran, and no model was evaluated."
    if not ranking.best:
        return f"{begin}every rule diverged in a seed."
    others = [k for k in ranking.labels if k != rule]
    if rule not in ranking.labels or not others:
        value = amount(_finals(ranking, rule), ranking.quantity)
        rounds = run.results.spec.rounds
        return f"{begin}{rule} ends with {value} {name} after {rounds} rounds."
    if len(ranking.finals[rule]) < 2:
        ends = (amount(_finals(ranking, k), ranking.quantity) for k in (rule, *others))
        own, other = list(ends)[:2]
        text = f"{begin}{rule} ends with {own} {name} and {others[0]} with {other}"
        return f"{text}; one seed cannot tell them apart."
    groups = ranking.by_verdict(rule)
    equal = [k for k in others if ranking.is_equal(rule, k)]
    every: dict[str, list[str]] = {k: list(v) for k, v in groups.items()}
    every["equal"] = equal
    parts = [
        f"{verb} {_names(every[verdict], len(others), every_one)}"
        for verdict, (verb, every_one) in VERBS.items()
        if every[verdict]
    ]
    parts[0] += f" on {name}"
    return f"{begin}{rule} {listed(parts)}{_lost(ranking, rule, groups['worse'])}."


def _lost(ranking: Ranking, rule: str, ahead: Sequence[str]) -> str:
    """That the rule diverged, where this is why it loses."""
    reasons = [ranking.compare(rule, k).reason for k in ahead]
    told = [r for r in reasons if r.startswith(("diverged", "ended above"))]
    return f"; it {told[0]}" if told else ""


def _names(labels: Sequence[str], count: int, every: str) -> str:
    """Rules by name, or how many they are."""
    if len(labels) <= MOST_NAMED:
        return listed(labels)
    return f"{f'{every} ' if len(labels) == count else ''}{len(labels)} others"


def _setting(run: PageRun) -> str:
    """The faulty clients as the beginning of a sentence; empty without any."""
    texts = _faulty(run)
    return f"{listed(texts)}: " if texts else ""


def _faulty(run: PageRun) -> list[str]:
    """What faulty and attacking clients do, and how many do it."""
    clients = run.results.spec.clients
    scenario = clients.scenario if isinstance(clients.scenario, Mapping) else {}
    texts = []
    for fault in map(dict, scenario.get("faults", ())):
        inner = fault.get("base", fault)  # the share of an attack made of another one
        count = round(inner.get("share", 1) * clients.n)
        who = "all" if "share" not in inner else f"{count} of {clients.n}"
        one = count == 1 and who != "all"
        texts.append(f"{who} clients {_fault(fault, is_one=one)}")
    return texts


def _fault(fault: Mapping[str, Any], *, is_one: bool) -> str:
    """What clients with a fault do: a verb and its object."""
    kind, inner = str(fault.get("kind", "")), fault.get("base")
    if isinstance(inner, Mapping):
        return f"{_fault(inner, is_one=is_one)} ({kind})"
    text = FAULTS.get(kind, f"attack by {short_name(kind)}")
    if kind == "ScaledUpdates":
        factor = float(fault.get("factor", -1.0))
        changed = "with the opposite sign" if factor == -1 else f"times {factor:g}"
        text = f"send updates {changed}"
    verb, rest = text.split(" ", 1)
    return f"{'has' if verb == 'have' else f'{verb}s'} {rest}" if is_one else text


def numbers(run: PageRun) -> list[Number]:
    """The author's rule, and what it stands beside; none without evaluations."""
    if not (run.ranking.finals or run.ranking.limits):
        return []
    labels = [run.rule, *([run.reference] if run.reference else [])]
    return [_number(run, label) for label in labels]


def beside(run: PageRun) -> str:
    """The best of the other rules, and the limits, in one line."""
    ranking, shown = run.ranking, (run.rule, run.reference)
    best = next((k for k in ranking.labels if k not in shown), None)
    texts = [] if best is None else [f"Best of the others: {best}, {_end(run, best)}."]
    limits = [f"{k}, {_end(run, k)}" for k in ranking.limits]
    texts += [f"Limit that knows the truth: {listed(limits)}."] if limits else []
    return " ".join(texts).replace(" %", "\N{NO-BREAK SPACE}%")


def _end(run: PageRun, label: str) -> str:
    return amount(_finals(run.ranking, label), run.ranking.quantity)


def _number(run: PageRun, label: str) -> Number:
    values, quantity = _finals(run.ranking, label), run.ranking.quantity
    spread = deviation(values, quantity)
    count = len(values)
    seeds = f"mean of {count} seeds" if count > 1 else "one seed"
    note = f"{QUANTITIES[quantity]}, {f'± {spread}, ' if spread else ''}{seeds}"
    return Number(amount(values, quantity), label, note, label)


def _finals(ranking: Ranking, label: str) -> Float64[Array, " seeds"]:
    return {**ranking.limits, **ranking.finals}[label]


def amount(values: Float64[Array, " seeds"], quantity: str) -> str:
    """The mean as text, to the digits of its deviation: accuracies in per cent."""
    return end_text(values, quantity, with_spread=False)


def deviation(values: Float64[Array, " seeds"], quantity: str) -> str:
    """The standard deviation over seeds, to the same digits; empty where none is."""
    return end_text(values, quantity).partition(" ± ")[2]


def end_text(
    values: Float64[Array, " seeds"], quantity: str, *, with_spread: bool = True
) -> str:
    """Mean ± standard deviation of the last values, to the same digits.

    >>> import numpy as np
    >>> end_text(np.array([0.9, 0.94]), "test_accuracy")
    '92.0 ± 2.8 %'
    """
    mean = float(values.mean())
    if not math.isfinite(mean):
        return "diverged"
    std = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    if quantity in LARGER_IS_BETTER:
        texts, unit = [f"{100 * v:.1f}" for v in (mean, std)], " %"
    else:
        small = 1e-4 <= abs(mean) < 1e6 or mean == 0
        form = f".{places(mean, std)}f" if small else ".3g"
        texts, unit = [f"{v:{form}}" for v in (mean, std)], ""
    has_spread = with_spread and math.isfinite(std)
    return " ± ".join(texts if has_spread else texts[:1]) + unit


def places(mean: float, std: float) -> int:
    """Decimal places of a mean: two digits of its deviation, or else four of its own.

    >>> places(0.123456, 0.0023), places(12.3, float("nan"))
    (4, 2)
    """
    scale, digits = (std, 2) if std > 1e-12 * abs(mean) else (abs(mean), 4)
    return min(7, max(0, digits - 1 - math.floor(math.log10(scale)))) if scale else 0


def compared(run: PageRun) -> list[str]:
    """What was compared: data, clients, local work, faults, rounds, seeds."""
    spec, known = run.results.spec, run.results.constants[0]
    clients, parts = spec.clients, []
    samples = sum(known["samples"] or ())
    name = PurePath(spec.data.name).name  # of the user's own file, without folders
    parts.append(name + (f" ({samples:,} samples)" if samples else ""))
    parts.append(f"{known['n']} clients, {clients.partition_text}")
    if known["d"]:
        parts.append(f"{known['d']:,} parameters")
    if not spec.is_record:
        parts.append(f"{_steps(clients.local_steps)}, batches of {clients.batch_size}")
        parts.append(_affected(run))
    if clients.root is not None:
        parts.append(f"{dict(clients.root).get('size', '')} root samples at the server")
    if clients.participation != "full":
        each = clients.participation
        sampled = f"{each} clients in a round" if isinstance(each, int) else "sampled"
        parts.append(sampled)
    count = len(spec.seeds)
    parts.append(f"{spec.rounds} rounds, {count} {'seed' if count == 1 else 'seeds'}")
    parts.append("step sizes tuned" if run.folder.choices else "step sizes given")
    return parts


def _affected(run: PageRun) -> str:
    """Faults, and on whom they fall."""
    texts = _faulty(run)
    if not texts:
        return "no faulty clients"
    bad, seed = faulty_clients(run.results, 0), run.results.spec.seeds[0]
    who = f" ({listed(map(str, bad), 8)} in seed {seed})" if bad else ""
    return f"{listed(texts)}{who}"


def _steps(given: Any) -> str:
    """Local steps in words."""
    if not isinstance(given, Mapping):
        many = isinstance(given, list | tuple)
        text = f"{min(given)} to {max(given)}" if many else f"{given}"
        return f"{text} local {'step' if text == '1' else 'steps'}"
    kind, rest = str(given.get("kind")), {k: v for k, v in given.items() if k != "kind"}
    if kind == "ChoiceSteps":
        return f"{_one_of(rest.get('choices', (1, 2, 4, 8)))} local steps"
    if kind == "EpochSteps":
        return f"{_one_of(rest.get('epochs', 1))} local epochs"
    fields = ", ".join(f"{k} = {v}" for k, v in rest.items())
    return f"local steps by {short_name(kind)}" + (f" ({fields})" if fields else "")


def _one_of(given: Any) -> str:
    """A number, or those that one is drawn from."""
    texts = list(map(str, given if isinstance(given, list | tuple) else [given]))
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if texts[1:] else texts)


def listed(names: Iterable[str], most: int = MOST_NAMED) -> str:
    """Names in a sentence, the rest counted.

    >>> listed(["A", "B", "C", "D", "E"])
    'A, B, C and 2 more'
    """
    every = list(names)
    if len(every) > most:
        every = [*every[:most], f"{len(every) - most} more"]
    if len(every) < 2:
        return "".join(every)
    return f"{', '.join(every[:-1])} and {every[-1]}"


# ------------------------------------------------------------------ several runs


def shared_rule(runs: Sequence[PageRun]) -> str | None:
    """The rule that all runs are about, if it is one."""
    rules = {run.rule for run in runs}
    return rules.pop() if len(runs) > 1 and len(rules) == 1 else None


def overall(runs: Sequence[PageRun], rule: str) -> tuple[str, list[Number]]:
    """One sentence and two numbers over several runs about one rule."""
    name = _common_reference(runs)
    counts = Counter(_against(run, rule, name) for run in runs)
    beaten = [run for run in runs if _losses(run, rule)]
    panels, who = len(runs), name or "the best of the others"
    quantities = {QUANTITIES[run.ranking.quantity] for run in runs}
    on = f" on {quantities.pop()}" if len(quantities) == 1 else ""
    known = [verdict for verdict in VERBS if counts[verdict]]
    parts = [f"{VERBS[verdict][0]} it in {counts[verdict]}" for verdict in known]
    count = f"{counts[known[0]]} of {panels} panels"
    parts[0] = f"{VERBS[known[0]][0]} {who}{on} in {count}"
    return f"{rule} {listed(parts, 4)}.", [
        Number(
            f"{counts['better']} of {panels}", f"panels where {rule} beats {who}", ""
        ),
        Number(
            f"{len(beaten)} of {panels}",
            f"panels where another rule beats {rule}",
            listed((run.name for run in beaten), 4),
        ),
    ]


def compared_everywhere(runs: Sequence[PageRun]) -> list[str]:
    """What was compared in all runs, and the names of the runs."""
    first, *rest = [compared(run) for run in runs]
    shared = [text for text in first if all(text in texts for texts in rest)]
    return [*shared, f"{len(runs)} panels: {listed((run.name for run in runs), 8)}"]


def _common_reference(runs: Sequence[PageRun]) -> str | None:
    """What the rule stands beside in every run; None where this differs."""
    names = {run.reference for run in runs}
    return names.pop() if len(names) == 1 else None


def _against(run: PageRun, rule: str, name: str | None) -> str:
    """The verdict on the rule against another one, or the best of the others."""
    ranking = run.ranking
    other = name or next((k for k in ranking.labels if k != rule), None)
    if other is None or rule not in ranking.labels:
        return "undecided"
    if ranking.is_equal(rule, other):
        return "equal"
    return ranking.compare(rule, other).verdict


def _losses(run: PageRun, rule: str) -> list[str]:
    """Rules that certainly beat it."""
    if rule not in run.ranking.labels:
        return []
    return run.ranking.by_verdict(rule)["worse"]
