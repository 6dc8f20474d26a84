"""Convolutions as matrix products, for many models side by side on a GPU.

    y = P K + bias,     P: patches (b·h·w, k·k·c), K: kernels (k·k·c, channels out)

`vmap` makes one grouped convolution of a layer that every model has weights of its own
for, which GPU libraries do slowly. As products it is one batched matrix product, which
they do well. The numbers are the same to rounding. Patches take k·k times the memory of
the layer's input.
"""

from typing import Any, final

from jaxtyping import Float

from hewfl.problems.module.backend import torch


@final
class Patches(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """What each output pixel sees: (b, c, h, w) to (b, h', w', k·k·c).

    A module of its own, so that its output counts as memory that a pass keeps.
    """

    def __init__(self, kernel: tuple[int, int], padding: tuple[int, int]) -> None:
        super().__init__()
        self.kernel, self.padding = kernel, padding

    def forward(self, x: Float[Any, "b c h w"]) -> Float[Any, "b y x k"]:
        """The shifted copies of the padded input, side by side."""
        (rows, columns), (top, left) = self.kernel, self.padding
        around = (0, 0, left, left, top, top)
        padded = torch.nn.functional.pad(x.permute(0, 2, 3, 1), around)
        height = padded.shape[1] - rows + 1
        width = padded.shape[2] - columns + 1
        # Slices, not `unfold`: on a GPU its kernel goes sample by sample, and the
        # derivative of a strided view has no rule under `vmap`.
        shifted = [
            padded[:, i : i + height, j : j + width]
            for i in range(rows)
            for j in range(columns)
        ]
        return torch.cat(shifted, dim=3)


@final
class ProductConv2d(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """`torch.nn.Conv2d` of stride 1 by a matrix product; parameters as there."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.patches = Patches(tuple(layer.kernel_size), tuple(layer.padding))

    def forward(self, x: Float[Any, "b c h w"]) -> Float[Any, "b o y x"]:
        """The layer's output, its channels last in memory."""
        found = self.patches(x)
        b, height, width, size = found.shape
        kernels = self.weight.permute(2, 3, 1, 0).reshape(size, -1)
        y = found.reshape(-1, size) @ kernels
        if self.bias is not None:
            y = y + self.bias
        return y.reshape(b, height, width, -1).permute(0, 3, 1, 2)


def with_products(module: Any) -> Any:
    """The module with its plain convolutions replaced, in place; others are left."""
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, torch.nn.Conv2d) and _is_plain(layer):
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, ProductConv2d(layer))
    return module


def _is_plain(layer: Any) -> bool:
    """Whether it has stride 1, no dilation, one group and padding by zeros."""
    ones = (*layer.stride, *layer.dilation, layer.groups)
    is_padded = isinstance(layer.padding, tuple) and layer.padding_mode == "zeros"
    return set(ones) == {1} and is_padded
