"""Checks that a module, a loss and samples make a federated problem."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hewfl.core.validation import as_float64, format_value, invalid, positives
from hewfl.displacements.backend import to_host
from hewfl.problems.module.network import Network, cross_entropy, flatten, torch
from hewfl.problems.module.training import as_inputs


def check_norms(module: Any) -> None:
    """Require a module without layers that keep running statistics.

    Raises:
        InvalidInputError: naming the layer and what to use instead.
    """
    if not isinstance(module, torch.nn.Module):
        raise invalid("module", "a torch.nn.Module", format_value(module))
    for name, layer in module.named_modules():
        if getattr(layer, "track_running_stats", False):
            rule = (
                "free of running statistics, which belong to no client "
                "(use torch.nn.GroupNorm, or LayerNorm)"
            )
            got = f"{type(layer).__name__} at {name or 'the top'!r}"
            raise invalid("module", rule, got)


def check_device(device: Any) -> None:
    """Require a device that torch has on this machine.

    Raises:
        InvalidInputError: torch cannot make a tensor there.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:  # the last: no CUDA
        rule = 'a device that torch has here, such as "cpu" or "cuda"'
        raise invalid("device", rule, format_value(device)) from error


def check_tensors(
    kind: str, features: Any, labels: Any, normalise: tuple[float, float] | None
) -> None:
    """Require features (m, …) and labels (m, …), finite tensors on one device, m ≥ 1.

    Args:
        kind: prefix of the names in errors: empty, or a part and a blank.
        features: a_j.
        labels: of each.
        normalise: mean and deviation; a must where features are bytes.

    Raises:
        InvalidInputError: naming `kind` features or `kind` labels.
    """
    names = f"{kind}features", f"{kind}labels"
    for name, array in zip(names, (features, labels), strict=True):
        if not isinstance(array, torch.Tensor):
            raise invalid(name, "a torch tensor", type(array).__name__)
        if array.ndim == 0 or array.numel() == 0:
            rule = "one entry per sample, at least one"
            raise invalid(name, rule, f"shape {tuple(array.shape)}")
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            raise invalid(name, "finite", "NaN or infinite entries")
    if labels.shape[0] != features.shape[0]:
        rule = f"one per sample, {features.shape[0]} of them"
        raise invalid(names[1], rule, labels.shape[0])
    if labels.device != features.device:
        rule = f"on the device of `{names[0]}`, {features.device}"
        raise invalid(names[1], rule, labels.device)
    _check_normalise(normalise)
    if features.dtype == torch.uint8 and normalise is None:
        rule = "(mean, deviation) where features are bytes"
        raise invalid("normalise", rule, normalise)


def _check_normalise(given: object) -> None:
    """Require None, or a finite mean and a positive deviation."""
    if given is None:
        return
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise invalid("normalise", "(mean, deviation)", format_value(given))
    as_float64("normalise[0]", to_host(given[0]))
    positives("normalise[1]", to_host(given[1]))


def check_pass(
    kind: str,
    network: Network,
    samples: tuple[Any, Any],
    normalise: tuple[float, float] | None,
) -> int:
    """Require that one pass over two samples keeps the rules of a federated problem.

    Args:
        kind: prefix of the names in errors: empty, or a part and a blank.
        network: the module with its loss.
        samples: features and labels.
        normalise: mean and deviation taken off features, or None.

    Returns:
        Numbers that a forward pass stores for one sample.

    Raises:
        InvalidInputError: the module or the loss fails on these samples, labels are no
            classes of the module, the loss is not one number per sample, or the module
            draws random numbers other than by dropout layers or changes its buffers.
    """
    features, labels = samples
    rows = torch.arange(2, device=features.device) % features.shape[0]
    inputs = as_inputs(features[rows], normalise, network.dtype)
    x = flatten(network.layout, network.learner.state_dict())
    with torch.no_grad(), _name_misfits():
        outputs = network.outputs(x, inputs)
    if network.loss is cross_entropy and not labels.is_floating_point():
        _check_classes(f"{kind}labels", labels, outputs)
    before = _random_state(features.device), _buffers(network.learner)
    with torch.no_grad(), _name_misfits(), _count_outputs(network.learner) as sizes:
        key = torch.zeros((), dtype=torch.int64, device=features.device)
        losses = network.losses(x, inputs, labels[rows], key)
    if tuple(losses.shape) != (2,):
        rule = 'one number per sample (reduction="none")'
        raise invalid("loss", rule, f"shape {tuple(losses.shape)} for 2 samples")
    after = _random_state(features.device), _buffers(network.learner)
    if not all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True)):
        rule = "one that draws random numbers by torch.nn.Dropout layers alone"
        raise invalid("module", rule, "one that uses torch's global generator")
    for (name, a), b in zip(before[1].items(), after[1].values(), strict=True):
        if not torch.equal(a, b):
            rule = "one whose buffers training leaves alone"
            raise invalid("module", rule, f"a change of {name!r}")
    return max(1, (sum(sizes) + int(inputs.numel())) // 2)


def _check_classes(name: str, labels: Any, outputs: Any) -> None:
    """Require labels that the module has an output for."""
    classes, low, high = outputs.shape[1], int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise invalid(name, f"from 0 to {classes - 1}", low if low < 0 else high)


@contextmanager
def _name_misfits() -> Iterator[None]:
    """Turn any failure within into an error about samples, module and loss."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        got = f"{type(error).__name__}: {error}"
        rule = "such that they take these features and labels"
        raise invalid("module, loss", rule, got) from error


@contextmanager
def _count_outputs(module: Any) -> Iterator[list[int]]:
    """Sizes of the outputs of the module's innermost layers."""
    sizes: list[int] = []

    def count(*given: Any) -> None:
        if isinstance(given[-1], torch.Tensor):
            sizes.append(int(given[-1].numel()))

    inner = [layer for layer in module.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(count) for layer in inner]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()


def _random_state(device: Any) -> list[Any]:
    here = [torch.get_rng_state()]
    there = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return here + there


def _buffers(module: Any) -> dict[str, Any]:
    return {name: buffer.clone() for name, buffer in module.named_buffers()}
