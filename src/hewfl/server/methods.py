"""Every algorithm of hewfl by its name, for specs and for runs that are resumed."""

from typing import Any

from hewfl import baselines
from hewfl.controllers.control import HewControl
from hewfl.controllers.fixed import HewFixed
from hewfl.controllers.het import HewHet
from hewfl.controllers.hom import HewHom
from hewfl.controllers.mean import HewMean

METHODS: dict[str, type[Any]] = {
    method.__name__: method
    for method in (
        *(HewHom, HewHet, HewMean, HewFixed, HewControl),
        *(getattr(baselines, name) for name in baselines.__all__),
    )
}
