"""A first look on the built-in digits, in ten seconds: good clients, then bad ones."""

from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.results import Results
from hewfl.experiments.sections import ClientsSpec, DataSpec, ProblemSpec, TuneSpec
from hewfl.experiments.spec import Spec
from hewfl.paper.specs import AMPLITUDES, HEW_CORRECTED, HEW_PLAIN, RATIOS, SCALES

BAD_SHARE = 0.15
"""Of the clients in the second part: three of twenty."""
NO_WEIGHT = 0.1
"""Less than this part of an equal share is called none."""
TRUST, KNOWS = "Trust", "knows who is bad"
WIDE = (4.0, 16.0, 64.0, 256.0)
WIDE_SCALES = (0.8, 3.2, 12.8, 51.2)


def demo_spec() -> Spec:
    """Twenty clients with skewed shares of the digits do 1, 2, 4 or 8 local steps.

    Hyper-parameters come from the paper's own grids.
    """
    amplitudes = {"amplitude": AMPLITUDES}
    exact = amplitudes | {"curvature_ratio": RATIOS}
    scales = {"step_scale": SCALES}
    return Spec(
        name="demo",
        methods=(
            MethodSpec("HewHet", HEW_CORRECTED, {}, exact),
            MethodSpec("HewHom", HEW_PLAIN, {}, exact),
            MethodSpec("HewFixed", "HEW-Fixed", {"power": 0.0}, amplitudes),
            MethodSpec("UniformLocalSGD", "Uniform", {}, scales),
            MethodSpec("FedAvg", "FedAvg", {}, scales),
            MethodSpec("FedNova", "FedNova", {}, scales),
            MethodSpec("Scaffold", "SCAFFOLD", {}, scales),
        ),
        rounds=60,
        seeds=(0, 1, 2),
        audit_every=5,
        data=DataSpec("digits"),
        clients=ClientsSpec(
            n=20,
            partition="dirichlet",
            alpha=0.2,
            minimum=8,
            batch_size=8,
            horizons={"kind": "ChoiceHorizons", "choices": [1, 2, 4, 8]},
        ),
        tune=TuneSpec(rounds=20, seeds=(0, 1, 2)),
    )


def bad_demo_spec() -> Spec:
    """The digits again, shuffled; three of the twenty clients have random labels.

    The objective is that of the other seventeen. No rule is told who they are, but for
    the yardstick in the last row.
    """
    equal = {"ground": "equal"}
    amplitudes, scales = {"amplitude": WIDE}, {"step_scale": WIDE_SCALES}
    return Spec(
        name="demo-bad-clients",
        methods=(
            MethodSpec("FedAvg", "FedAvg", {}, scales),
            MethodSpec("HewFixed", "horizon", {"power": 1.0}, amplitudes),
            MethodSpec("HewHom", "HEW (Alg. 3), kappa 10", {"kappa": 10.0}, amplitudes),
            MethodSpec(
                "GeometricMedian", "geometric median", equal, {"step_scale": WIDE}
            ),
            MethodSpec("Trust", TRUST, {}, amplitudes),
            MethodSpec("KnownQuality", KNOWS, {}, amplitudes),
        ),
        rounds=40,
        seeds=(0, 1, 2),
        evaluate_every=5,
        data=DataSpec("digits"),
        problem=ProblemSpec(optimum=False),
        clients=ClientsSpec(
            n=20,
            partition="iid",
            batch_size=8,
            horizons={"kind": "ChoiceHorizons", "choices": [1, 2, 4, 8]},
            world={"faults": [{"kind": "RandomLabels", "share": BAD_SHARE}]},
        ),
        tune=TuneSpec(rounds=20, seeds=(3,)),
    )


def without_weight(results: Results, label: str) -> list[int]:
    """Clients that a method of the first seed gave next to nothing, at the end.

    By the mean of the last ten rounds, against a tenth of an equal share.
    """
    records = results.records[0][results.labels.index(label)][-10:]
    total = dict.fromkeys(range(results.spec.clients.n), 0.0)
    for record in records:
        for i, weight in zip(record.clients, record.weights, strict=True):
            total[i] += abs(weight) / len(records)
    least = NO_WEIGHT / results.spec.clients.n
    return sorted(i for i, weight in total.items() if weight < least)


def bad_of(results: Results) -> list[int]:
    """Who was bad in the first seed, as its trace says."""
    return list(results.records[0][0][0].world["bad"])
