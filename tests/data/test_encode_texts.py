"""The example that encodes texts, with a small stand-in for transformers."""

import gzip
import hashlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hewfl.data.catalogue import CATALOGUE, DataFile
from hewfl.data.load import load

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "encode_texts.py"
TABLE = np.sin(np.arange(60.0 * 6)).reshape(60, 6)
ROUNDING = 1e-5  # float32, sums of at most 40 terms of order one
TEXTS = [f"{'word ' * (k % 9)}text {k}" for k in range(16)]


class Tokens(dict[str, Any]):
    def to(self, device: str) -> "Tokens":
        return Tokens({key: value.to(device) for key, value in self.items()})


def token_ids(text: str) -> list[int]:
    return [1, *(2 + ord(letter) % 50 for letter in text)]


def tokenise(texts: list[str], *, max_length: int, **_: Any) -> Tokens:
    """One token per letter after a first one, padded with zeros."""
    rows = [token_ids(text)[:max_length] for text in texts]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    return Tokens(input_ids=ids, attention_mask=(ids > 0).long())


class Network(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Each state depends on its token and on the mean of the text."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(TABLE))
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        states, mask = self.table[input_ids], attention_mask[:, :, None]
        mean = (states * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        return SimpleNamespace(last_hidden_state=self.dropout(states + mean))


def expected(text: str, pooling: str) -> NDArray[np.float64]:
    states = TABLE[token_ids(text)]
    first = states[0] if pooling == "cls" else states.mean(axis=0)
    return np.asarray(first + states.mean(axis=0))


@pytest.fixture
def missing_weights(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    missing, fake = {"pooler.dense.weight"}, ModuleType("transformers")
    tokenizers = SimpleNamespace(from_pretrained=lambda *_, **__: tokenise)
    info = {"missing_keys": missing}
    models = SimpleNamespace(from_pretrained=lambda *_, **__: (Network(), info))
    monkeypatch.setattr(fake, "AutoTokenizer", tokenizers, raising=False)
    monkeypatch.setattr(fake, "AutoModel", models, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    return missing


@pytest.fixture
def news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten and six rows of AG News, without features."""
    rows = [f'"{k % 4 + 1}","{text}","x"\n' for k, text in enumerate(TEXTS)]
    files = []
    parts = (rows[:10], rows[10:])
    for file, part in zip(CATALOGUE["ag_news"].files, parts, strict=False):
        content = gzip.compress("".join(part).encode(), mtime=0)
        path = tmp_path / "data" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        files.append(DataFile(file.path, len(content), (sha256,)))
    monkeypatch.setenv("HEWFL_DATA", str(tmp_path / "data"))
    info = replace(CATALOGUE["ag_news"], files=tuple(files))
    monkeypatch.setitem(CATALOGUE, "ag_news", info)


def run_example(*arguments: str) -> None:
    spec = importlib.util.spec_from_file_location("encode_texts", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.BATCH_SIZE = 4
    module.main(arguments)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.usefixtures("news", "missing_weights")
def test_load_reads_the_features(tmp_path: Path, pooling: str) -> None:
    file = tmp_path / "news.npz"
    run_example("model", str(file), "--pooling", pooling)
    dataset = load(file)
    wanted = np.array([expected(f"{text} x", pooling) for text in TEXTS])
    np.testing.assert_allclose(dataset.features, wanted[:10], atol=ROUNDING)
    assert dataset.features.dtype == np.float32
    assert dataset.labels.tolist() == [k % 4 for k in range(10)]
    assert dataset.test is not None
    np.testing.assert_allclose(dataset.test[0], wanted[10:], atol=ROUNDING)
    assert dataset.test[1].tolist() == [k % 4 for k in range(10, 16)]


@pytest.mark.usefixtures("news")
def test_missing_weights_are_an_error(
    missing_weights: set[str], tmp_path: Path
) -> None:
    missing_weights.add("layer.weight")
    with pytest.raises(SystemExit, match=r"lacks weights.*layer\.weight"):
        run_example("model", str(tmp_path / "news.npz"))
