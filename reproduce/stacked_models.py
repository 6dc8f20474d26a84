"""Two small deep models for many replicas at once: one flat row of parameters each.

A char-level transformer on AG News and a CNN on Fashion-MNIST; for a check on other
data, the same on the source text of Python's standard library and on MNIST. All
replicas of a stack take their step in one call, so a GPU is busy with small models, and
a laptop runs the same code. Data come from `HEWFL_DATA`.
"""

import math
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from hewfl.data import ag_news_texts, load

Tensor = Any
Shapes = Mapping[str, tuple[int, ...]]


class Stacked(Protocol):
    """A model and its data, for a stack of replicas."""

    @property
    def shapes(self) -> Shapes:
        """Parameters by name, in the order of a flat row."""

    @property
    def samples(self) -> int:
        """Training samples to draw from."""

    def start(self, seed: int) -> Tensor:
        """One flat row of first parameters."""

    def losses(self, rows: Tensor, chosen: Tensor, bad: Tensor) -> Tensor:
        """Loss of each replica on each sample of its rank, shape (entries · a, b).

        Args:
            rows: parameters of a ranks in each entry, entry after entry.
            chosen: samples of each rank, the same in all entries, shape (a, b).
            bad: which ranks see labels without meaning, shape (a,).
        """

    def scores(self, rows: Tensor) -> Tensor:
        """Test loss and accuracy of each replica, shape (r, 2)."""


def parts(rows: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Views of flat rows as parameters with a leading axis of replicas."""
    by_name, at = {}, 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        by_name[name] = rows[:, at : at + size].view(-1, *shape)
        at += size
    return by_name


def _first(shapes: Shapes, seed: int, gains: Mapping[str, float]) -> Tensor:
    """Normal entries of deviation gain/√fan-in; vectors are zero, or one for scales."""
    source, rows = torch.Generator().manual_seed(seed), []
    for name, shape in shapes.items():
        if len(shape) == 1:
            rows.append(torch.full(shape, float(name.endswith("scale"))))
        else:
            scale = gains.get(name, 1.0) / math.sqrt(shape[0])
            rows.append(scale * torch.randn(shape, generator=source).reshape(-1))
    return torch.cat([row.reshape(-1) for row in rows])


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """X (r, …, i) times (r, i, o), plus (r, o)."""
    flat = x.flatten(1, -2)
    return torch.baddbmm(bias[:, None], flat, weight).view(*x.shape[:-1], -1)


def _patches(x: Tensor) -> Tensor:
    """Patches of 5 × 5 around every pixel, (m, pixels, 25 channels).

    In one copy: on a GPU `F.unfold` starts a kernel for every image.
    """
    views = F.pad(x, (2, 2, 2, 2)).unfold(2, 5, 1).unfold(3, 5, 1)
    return views.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def _entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropies of each replica, shape (r, predictions)."""
    flat = logits.flatten(0, -2), targets.flatten()
    return F.cross_entropy(*flat, reduction="none").view(len(targets), -1)


@final
@dataclass(frozen=True)
class CharTransformer:
    """Next characters of news: two pre-norm blocks with causal attention.

    Attributes:
        text: characters by number, training and test.
        held_out: the same for the test.
        width: of the embedding.
        blocks: how many.
        context: characters of a sample.
        heads: of the attention.
    """

    text: Tensor
    held_out: Tensor
    characters: int
    width: int = 64
    blocks: int = 2
    context: int = 64
    heads: int = 4

    @property
    def shapes(self) -> Shapes:
        """Embeddings, blocks, head."""
        D, V = self.width, self.characters
        shapes: dict[str, tuple[int, ...]] = {
            "embed": (V, D),
            "place": (self.context, D),
        }
        for k in range(self.blocks):
            shapes |= {
                f"{k}.one.scale": (D,),
                f"{k}.qkv": (D, 3 * D),
                f"{k}.qkv.bias": (3 * D,),
                f"{k}.out": (D, D),
                f"{k}.out.bias": (D,),
                f"{k}.two.scale": (D,),
                f"{k}.up": (D, 4 * D),
                f"{k}.up.bias": (4 * D,),
                f"{k}.down": (4 * D, D),
                f"{k}.down.bias": (D,),
            }
        return shapes | {"last.scale": (D,), "head": (D, V), "head.bias": (V,)}

    @property
    def samples(self) -> int:
        """Places where a sample may begin."""
        return len(self.text) - self.context - 1

    def start(self, seed: int) -> Tensor:
        """Small embeddings, and branches that begin small."""
        small = dict.fromkeys((f"{k}.out" for k in range(self.blocks)), 0.5)
        small |= dict.fromkeys((f"{k}.down" for k in range(self.blocks)), 0.5)
        tables = {"embed": 0.02 * math.sqrt(self.characters)}
        tables["place"] = 0.02 * math.sqrt(self.context)
        return _first(self.shapes, seed, small | tables | {"head": 0.5})

    def losses(self, rows: Tensor, chosen: Tensor, bad: Tensor) -> Tensor:
        """Cross-entropy per character."""
        reach = torch.arange(self.context + 1, device=rows.device)
        windows = self.text[chosen[..., None] + reach]  # (a, b, context + 1)
        targets = windows[..., 1:]
        noise = torch.randint_like(targets, self.characters)
        targets = torch.where(bad[:, None, None], noise, targets)
        entries = len(rows) // len(chosen)
        inputs, targets = (
            windows[..., :-1].repeat(entries, 1, 1),
            targets.repeat(entries, 1, 1),
        )
        logits = self._logits(rows, inputs)
        return _entropies(logits, targets).view(targets.shape).mean(dim=2)

    def scores(self, rows: Tensor) -> Tensor:
        """Of 256 windows of the held-out text."""
        starts = torch.linspace(0, len(self.held_out) - self.context - 1, 256).long()
        reach = torch.arange(self.context + 1)
        windows = self.held_out[(starts[:, None] + reach).to(rows.device)]
        scores = []
        for row in rows.split(8):
            mine = windows.expand(len(row), -1, -1)
            logits = self._logits(row, mine[..., :-1])
            hits = (logits.argmax(-1) == mine[..., 1:]).double().mean(dim=(1, 2))
            loss = _entropies(logits, mine[..., 1:]).double().mean(dim=1)
            scores.append(torch.stack([loss, hits], dim=1))
        return torch.cat(scores)

    def _logits(self, rows: Tensor, inputs: Tensor) -> Tensor:
        p, (r, b, T) = parts(rows, self.shapes), inputs.shape
        each = torch.arange(r, device=rows.device)[:, None, None]
        x = p["embed"][each, inputs] + p["place"][:, None]
        for k in range(self.blocks):
            y = self._normed(x, p[f"{k}.one.scale"])
            qkv = _linear(y, p[f"{k}.qkv"], p[f"{k}.qkv.bias"])
            q, key, v = (
                part.reshape(r * b, T, self.heads, -1).transpose(1, 2)
                for part in qkv.split(self.width, dim=-1)
            )
            y = F.scaled_dot_product_attention(q, key, v, is_causal=True)
            y = y.transpose(1, 2).reshape(r, b, T, self.width)
            x = x + _linear(y, p[f"{k}.out"], p[f"{k}.out.bias"])
            y = self._normed(x, p[f"{k}.two.scale"])
            y = F.gelu(_linear(y, p[f"{k}.up"], p[f"{k}.up.bias"]))
            x = x + _linear(y, p[f"{k}.down"], p[f"{k}.down.bias"])
        x = self._normed(x, p["last.scale"])
        return _linear(x, p["head"], p["head.bias"])

    def _normed(self, x: Tensor, scale: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,)) * scale[:, None, None]


@final
@dataclass(frozen=True)
class SmallCNN:
    """Fashion-MNIST: two convolutions of 5 × 5, a hidden layer, ten classes.

    Attributes:
        images: training images, standardised, shape (m, 1, side, side).
        labels: of them.
        held_out: images and labels of the test.
        width: maps of the first convolution; the second has twice as many.
    """

    images: Tensor
    labels: Tensor
    held_out: tuple[Tensor, Tensor]
    width: int = 8

    @property
    def shapes(self) -> Shapes:
        """Convolutions as matrices of patches."""
        W, side = self.width, self.images.shape[-1] // 2 // 2
        return {
            "one": (25, W),
            "one.bias": (W,),
            "two": (25 * W, 2 * W),
            "two.bias": (2 * W,),
            "hidden": (side * side * 2 * W, 8 * W),
            "hidden.bias": (8 * W,),
            "head": (8 * W, 10),
            "head.bias": (10,),
        }

    @property
    def samples(self) -> int:
        """Training images."""
        return len(self.labels)

    def start(self, seed: int) -> Tensor:
        """He's start."""
        gains = dict.fromkeys(("one", "two", "hidden"), math.sqrt(2.0))
        return _first(self.shapes, seed, gains)

    def losses(self, rows: Tensor, chosen: Tensor, bad: Tensor) -> Tensor:
        """Cross-entropy per image."""
        labels = self.labels[chosen]
        labels = torch.where(bad[:, None], torch.randint_like(labels, 10), labels)
        entries = len(rows) // len(chosen)
        logits = self._logits(rows, self.images[chosen].repeat(entries, 1, 1, 1, 1))
        return _entropies(logits, labels.repeat(entries, 1))

    def scores(self, rows: Tensor) -> Tensor:
        """Of the held-out images."""
        images, labels = self.held_out
        scores = []
        for row in rows.split(4):
            logits = self._logits(row, images.expand(len(row), -1, -1, -1, -1))
            mine = labels.expand(len(row), -1)
            hits = (logits.argmax(-1) == mine).double().mean(dim=1)
            loss = _entropies(logits, mine).double().mean(dim=1)
            scores.append(torch.stack([loss, hits], dim=1))
        return torch.cat(scores)

    def _logits(self, rows: Tensor, images: Tensor) -> Tensor:
        p, (r, b) = parts(rows, self.shapes), images.shape[:2]
        x = images.flatten(0, 1)
        for name in ("one", "two"):
            side = x.shape[-1]
            y = _linear(_patches(x).unflatten(0, (r, b)), p[name], p[f"{name}.bias"])
            maps = y.transpose(2, 3).reshape(r * b, -1, side, side)
            x = F.max_pool2d(F.relu(maps), 2)
        x = x.reshape(r, b, -1)
        x = F.relu(_linear(x, p["hidden"], p["hidden.bias"]))
        return _linear(x, p["head"], p["head.bias"])


def news() -> list[str]:
    """AG News as one text, training and test."""
    return ["\n".join(part.texts) for part in ag_news_texts()]


def python_source() -> list[str]:
    """The modules of Python's standard library as one text; every tenth is a test."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [file.read_text(errors="replace") for file in files]
    train = [text for k, text in enumerate(texts) if k % 10]
    return ["\n".join(train), "\n".join(texts[::10])]


def char_transformer(
    device: str,
    held_out: int = 200_000,
    sizes: Mapping[str, int] | None = None,
    read: Callable[[], list[str]] = news,
) -> CharTransformer:
    """A text: the commonest 64 characters, and one for all others."""
    joined = read()
    counts = np.bincount(
        np.frombuffer(joined[0].encode("latin-1", "replace"), np.uint8)
    )
    common = np.argsort(-counts, kind="stable")[:64]
    number = np.full(256, 64)
    number[common] = np.arange(len(common))
    text, test_text = (
        torch.from_numpy(
            number[np.frombuffer(part.encode("latin-1", "replace"), np.uint8)]
        ).to(device)
        for part in joined
    )
    return CharTransformer(text, test_text[:held_out], 65, **(sizes or {}))


def small_cnn(
    device: str,
    held_out: int = 2000,
    pooled: int = 1,
    width: int = 8,
    name: str = "fashion_mnist",
) -> SmallCNN:
    """Images of Fashion-MNIST, or MNIST by class; a part of the test images.

    Args:
        device: of the tensors.
        held_out: test images.
        pooled: side of the squares of pixels that are averaged.
        width: of the model.
        name: of the data set.
    """
    data, is_fashion = load(name), name == "fashion_mnist"
    mean, deviation = (0.2860, 0.3530) if is_fashion else (0.1307, 0.3081)
    assert data.test is not None, "published with a test part"

    def tensors(features: Any, labels: Any) -> tuple[Tensor, Tensor]:
        pixels = torch.as_tensor(np.array(features), dtype=torch.float32) / 255
        images = ((pixels - mean) / deviation).reshape(-1, 1, 28, 28)
        images = F.avg_pool2d(images, pooled)
        return images.to(device), torch.as_tensor(np.array(labels)).to(device)

    images, labels = tensors(data.features, data.labels)
    if not is_fashion:  # so that contiguous parts have classes of their own
        order = torch.argsort(labels, stable=True)
        images, labels = images[order], labels[order]
    held = tensors(*(part[:held_out] for part in data.test))
    return SmallCNN(images, labels, held, width)
