"""A first look: unequal work and skewed data on the built-in digits, in a minute."""

from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.sections import ClientsSpec, DataSpec, TuneSpec
from hewfl.experiments.spec import Spec
from hewfl.paper.specs import AMPLITUDES, HEW_CORRECTED, HEW_PLAIN, RATIOS, SCALES


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
