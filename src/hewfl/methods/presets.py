"""Methods of the literature by their names, each a `Method` of three parts.

Every preset takes a learning rate, and the other options of `LocalSGD` by name:
`FedAvg(0.1)`, or `FedAvg(total=0.5)` for one total step shared among the local steps of
a client.
"""
# ruff: noqa: N802 - functions named like the methods they make

from typing import Any

from hewfl.aggregators.averaging import Mean, NormalizedMean, PowerWeights
