"""A first look: unequal work and skewed data on the built-in digits, in a minute."""

from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.spec import ClientsSpec, DataSpec, Spec, TuneSpec

HEW = "HEW (Alg. 2)"


def demo_spec() -> Spec:
    """Twenty clients with skewed shares of the digits do 1, 2, 4 or 8 local steps."""
    amplitudes = {"amplitude": (0.5, 1.0, 2.0, 4.0, 8.0)}
    exact = amplitudes | {"curvature_ratio": (1.1, 1.5, 2.0)}
    scales = {"step_scale": (0.2, 0.4, 0.8, 1.6)}
    return Spec(
        name="demo",
        methods=(
            MethodSpec("HewHet", HEW, {}, exact),
            MethodSpec("HewHom", "HEW (Alg. 3)", {}, exact),
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
