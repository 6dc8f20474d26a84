"""Four networks by name: an MLP, a CNN, a ResNet-18, and a small vision transformer.

Each takes rows that are flat, as data sets hold them, and is made for their shape. None
has layers with running statistics, which belong to no client.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Any

from hewfl.core.validation import invalid, whole
from hewfl.problems.module.network import torch

nn = torch.nn
Shape = tuple[int, ...]


def mlp(shape: Shape, classes: int, *, width: int = 200, depth: int = 2) -> Any:
    """Dense layers with ReLU: the "2NN" of [McMahan2017] by default.

    Args:
        shape: of a sample.
        classes: outputs.
        width: of each hidden layer.
        depth: number of hidden layers.

    >>> sum(p.numel() for p in mlp((1, 28, 28), 10).parameters())
    199210
    """
    sizes = [prod(shape), *[whole("width", width, least=1)] * whole("depth", depth)]
    layers = [
        layer
        for wide, narrow in pairwise(sizes)
        for layer in (nn.Linear(wide, narrow), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def cnn(shape: Shape, classes: int, *, width: int = 32, dense: int = 512) -> Any:
    """Two 5 × 5 convolutions with pooling and a dense layer: that of [McMahan2017].

    Args:
        shape: channels, height and width of an image, the latter two at least 4.
        classes: outputs.
        width: channels of the first convolution; the second has twice as many.
        dense: outputs of the dense layer.

    >>> sum(p.numel() for p in cnn((1, 28, 28), 10).parameters())
    1663370
    """
    channels, height, across = _image(shape, 4)
    return nn.Sequential(
        nn.Unflatten(1, shape),
        *(nn.Conv2d(channels, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(2 * width * (height // 4) * (across // 4), dense), nn.ReLU()),
        nn.Linear(dense, classes),
    )


def resnet18(shape: Shape, classes: int, *, width: int = 64, groups: int = 2) -> Any:
    """ResNet-18 [He2016] for small images: a 3 × 3 first convolution, no first pooling.

    GroupNorm with two groups takes the place of batch normalisation, as in
    [Reddi2021]: statistics of a batch differ between clients with different classes,
    and their running means belong to no client, so that accuracy falls on non-IID data
    [Hsieh2020].

    Args:
        shape: channels, height and width of an image, the latter two at least 8.
        classes: outputs.
        width: channels of the first stage; it doubles three times.
        groups: of each GroupNorm; 1 normalises all channels together.

    >>> sum(p.numel() for p in resnet18((3, 32, 32), 10).parameters())
    11173962
    """
    channels, _, _ = _image(shape, 8)
    if width % whole("groups", groups, least=1):
        raise invalid("groups", f"a divisor of width = {width}", groups)
    layers = [nn.Unflatten(1, shape), *_convolution(channels, width, 1, groups)]
    layers.append(nn.ReLU())
    before = width
    for stage in range(4):
        after = width * 2**stage
        for stride in (1 if stage == 0 else 2, 1):
            layers.append(_Residual(before, after, stride, groups))
            before = after
    return nn.Sequential(*layers, _MeanOverPlaces(), nn.Linear(before, classes))


def transformer(
    shape: Shape,
    classes: int,
    *,
    patch: int = 4,
    width: int = 64,
    depth: int = 4,
    heads: int = 4,
) -> Any:
    """A small vision transformer [Dosovitskiy2021]: patches, attention, mean.

    Layers are normalised before attention and before the dense part, positions are
    learned, and the mean over patches is classified.

    Args:
        shape: channels, height and width of an image.
        classes: outputs.
        patch: side of a patch, which divides height and width.
        width: numbers for each patch.
        depth: number of layers.
        heads: of the attention; they divide the width.

    >>> sum(p.numel() for p in transformer((3, 32, 32), 10).parameters())
    207946
    """
    channels, height, across = _image(shape, 1)
    if height % whole("patch", patch, least=1) or across % patch:
        raise invalid("patch", f"a divisor of {height} and {across}", patch)
    if width % whole("heads", heads, least=1):
        raise invalid("heads", f"a divisor of width = {width}", heads)
    tokens = (height // patch) * (across // patch)
    return nn.Sequential(
        nn.Unflatten(1, shape),
        nn.Conv2d(channels, width, patch, stride=patch),
        _Positions(tokens, width),
        *(_Attention(width, heads) for _ in range(whole("depth", depth, least=1))),
        nn.LayerNorm(width),
        _MeanOverTokens(),
        nn.Linear(width, classes),
    )


ZOO: Mapping[str, Callable[..., Any]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet18": resnet18,
    "transformer": transformer,
}
"""The networks by name."""


def _image(shape: Shape, least: int) -> tuple[int, int, int]:
    """Channels, height and width of an image that is large enough."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise invalid("shape", f"of images of {least} × {least} pixels or more", shape)
    return shape[0], shape[1], shape[2]


def _convolution(before: int, after: int, stride: int, groups: int) -> list[Any]:
    """A 3 × 3 convolution and its normalisation."""
    layer = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
    return [layer, nn.GroupNorm(groups, after)]


class _Residual(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """relu(x + f(x)), f of two convolutions; x is projected where shapes differ."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(before, after, stride, groups),
            nn.ReLU(),
            *_convolution(after, after, 1, groups),
        )
        self.skip = nn.Identity()
        if stride != 1 or before != after:
            project = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.skip = nn.Sequential(project, nn.GroupNorm(groups, after))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.skip(x) + self.body(x))


class _MeanOverPlaces(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """(b, c, h, w) to (b, c)."""

    def forward(self, x: Any) -> Any:
        return x.mean(dim=(2, 3))


class _MeanOverTokens(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """(b, t, c) to (b, c)."""

    def forward(self, x: Any) -> Any:
        return x.mean(dim=1)


class _Positions(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Patches (b, c, h, w) as tokens (b, h w, c), plus a learned vector for each."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.02 * torch.randn(tokens, width))

    def forward(self, x: Any) -> Any:
        return x.flatten(2).transpose(1, 2) + self.vectors


class _Attention(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A layer of the transformer; attention is written out, for `torch.func.vmap`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.dense = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Any) -> Any:
        b, tokens, width = x.shape
        split = (b, tokens, 3, self.heads, width // self.heads)
        q, k, v = self.project(self.before(x)).reshape(split).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, tokens, width)
        x = x + self.join(mixed)
        return x + self.dense(x)
