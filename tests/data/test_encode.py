"""Encoding, by a small deterministic stand-in for transformers."""

import gzip
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from hewfl.cli.data_commands import data
from hewfl.data import encode as module
from hewfl.data.catalogue import CATALOGUE
from hewfl.data.encode import encode, encode_ag_news
from hewfl.data.load import load
from hewfl.data.paths import DataFile
from hewfl.errors import DataError, InvalidInputError, MissingExtraError

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

WIDTH = 6
ROUNDING = 1e-5  # float32, sums of at most 40 terms of order one
TEXTS = [f"{'word ' * (k % 9)}text {k}" for k in range(23)]


class Tokens(dict[str, Any]):
    def to(self, device: str) -> "Tokens":
        return Tokens({key: value.to(device) for key, value in self.items()})


@dataclass
class Library:
    """What the stand-in was asked for, and how it shall fail."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)
    loading: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    missing: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    pad_token: str | None = "-"
    scale: float = 1.0
    fail_after: float = np.inf

    def tokenizer(self, place: str, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.loading = {"place": place, **options}

        def tokenise(texts: list[str], **options: Any) -> Tokens:
            """One token per letter after a first one, padded with zeros."""
            self.asked.append(options)
            rows = [[1, *(2 + ord(c) % 50 for c in t)] for t in texts]
            rows = [row[: options["max_length"]] for row in rows]
            length = max(map(len, rows))
            ids = torch.tensor([r + [0] * (length - len(r)) for r in rows])
            return Tokens(input_ids=ids, attention_mask=(ids > 0).long())

        tokenise.pad_token = self.pad_token  # type: ignore[attr-defined]
        return tokenise

    def model(self, _place: str, **_options: Any) -> Any:
        library = self

        class Network(torch.nn.Module):  # type: ignore[misc,name-defined]
            """Each state depends on its token and on the mean of the text."""

            def __init__(self) -> None:
                super().__init__()
                values = torch.sin(torch.arange(60.0 * WIDTH)).reshape(60, WIDTH)
                self.table = torch.nn.Parameter(values * library.scale)
                self.dropout = torch.nn.Dropout(0.5)
                self.config = SimpleNamespace(**library.config)

            def forward(self, input_ids: Any, attention_mask: Any) -> Any:
                assert not torch.is_grad_enabled()
                library.batches.append(tuple(input_ids.shape))
                if len(library.batches) > library.fail_after:
                    raise KeyboardInterrupt
                states, mask = self.table[input_ids], attention_mask[:, :, None]
                mean = (states * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
                return SimpleNamespace(last_hidden_state=self.dropout(states + mean))

        return Network(), {"missing_keys": set(self.missing)}


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    library, fake = Library(), ModuleType("transformers")
    tokenizers = SimpleNamespace(from_pretrained=library.tokenizer)
    models = SimpleNamespace(from_pretrained=library.model)
    monkeypatch.setattr(fake, "AutoTokenizer", tokenizers, raising=False)
    monkeypatch.setattr(fake, "AutoModel", models, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    monkeypatch.setattr(module, "_BLOCK", 8)
    return library


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def expected(text: str, pooling: str, max_length: int = 192) -> NDArray[np.float64]:
    ids = [1, *(2 + ord(c) % 50 for c in text)][:max_length]
    states = np.sin(np.arange(60.0 * WIDTH)).reshape(60, WIDTH)[ids]
    first = states[0] if pooling == "cls" else states.mean(axis=0)
    return np.asarray(first + states.mean(axis=0))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_rows_are_those_of_the_texts(
    library: Library, folder: Path, pooling: str
) -> None:
    rows = encode(TEXTS, folder, pooling=pooling)
    assert rows.dtype == np.float32
    wanted = np.array([expected(text, pooling) for text in TEXTS])
    np.testing.assert_allclose(rows, wanted, atol=ROUNDING)
    assert library.loading["local_files_only"]
    assert library.loading["place"] == str(folder)
    assert library.loading["padding_side"] == "right"


def test_texts_are_cut(library: Library, folder: Path) -> None:
    encode(TEXTS, folder)
    assert {options["max_length"] for options in library.asked} == {192}
    assert all(options["truncation"] for options in library.asked)
    rows = encode(TEXTS, folder, max_length=4)
    wanted = np.array([expected(text, "cls", 4) for text in TEXTS])
    np.testing.assert_allclose(rows, wanted, atol=ROUNDING)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_batches_change_nothing_but_rounding(
    library: Library,
    folder: Path,
    pooling: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = encode(TEXTS, folder, batch_size=1, pooling=pooling)
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "other"))
    library.batches.clear()
    seven = encode(TEXTS, folder, batch_size=7, pooling=pooling)
    assert [rows for rows, _ in library.batches] == [7, 1, 7, 1, 7]
    np.testing.assert_allclose(one, seven, atol=ROUNDING)


def test_an_interrupted_encoding_goes_on(
    library: Library, folder: Path, cache: Path
) -> None:
    library.fail_after = 3  # the first block of 8 has two batches
    with pytest.raises(KeyboardInterrupt):
        encode(TEXTS, folder, batch_size=4)
    assert not list(cache.rglob(".rows*"))
    library.fail_after = np.inf
    library.batches.clear()
    told: list[tuple[int, int]] = []
    rows = encode(
        TEXTS, folder, batch_size=4, on_batch=lambda *counts: told.append(counts)
    )
    assert sum(count for count, _ in library.batches) == 23 - 8
    assert told == [(k, 23) for k in (8, 12, 16, 20, 23)]
    np.testing.assert_allclose(rows, [expected(t, "cls") for t in TEXTS], atol=ROUNDING)


def test_a_finished_encoding_is_read(
    library: Library, folder: Path, cache: Path
) -> None:
    rows = encode(TEXTS, folder)
    library.batches.clear()
    np.testing.assert_array_equal(encode(TEXTS, folder, batch_size=2), rows)
    assert not library.batches
    damaged = sorted(cache.rglob("rows-*.npy"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    np.testing.assert_array_equal(encode(TEXTS, folder), rows)
    assert [count for count, _ in library.batches] == [8]


def _other_text(_library: Library, _folder: Path) -> list[str]:
    return [*TEXTS[:-1], "another"]


def _other_file(_library: Library, folder: Path) -> list[str]:
    (folder / "vocab.txt").write_text("a")
    return TEXTS


@pytest.mark.parametrize("change", [_other_text, _other_file])
def test_other_texts_and_models_are_encoded_anew(
    library: Library, folder: Path, change: Callable[[Library, Path], list[str]]
) -> None:
    encode(TEXTS, folder)
    texts = change(library, folder)
    library.batches.clear()
    encode(texts, folder)
    assert sum(count for count, _ in library.batches) == 23


def test_a_name_on_the_hub_stands_for_its_weights(library: Library) -> None:
    rows = encode(TEXTS, "owner/name")
    assert not library.loading["local_files_only"]
    library.scale = 2.0
    np.testing.assert_allclose(encode(TEXTS, "owner/name"), 2 * rows, atol=ROUNDING)


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_missing_package(
    library: Library, folder: Path, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingExtraError, match="extra text"):
        encode(TEXTS, folder)
    assert not library.batches


def test_unreachable_hub_is_one_line(library: Library) -> None:
    library.error = OSError("We couldn't connect to the hub.\nCheck your connection.")
    with pytest.raises(DataError, match=r"distil: .*connect.*local folder") as caught:
        encode(TEXTS, "distil")
    assert "\n" not in str(caught.value)


def test_absent_folder_is_no_name(library: Library, tmp_path: Path) -> None:
    for model in (tmp_path / "absent", str(tmp_path / "absent"), "./absent"):
        with pytest.raises(DataError, match="no such folder"):
            encode(TEXTS, model)
    assert not library.loading


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"missing": ("pooler.w", "layer.w")}, "1 weights are missing, such as layer"),
        ({"config": {"is_encoder_decoder": True}}, "must be an encoder"),
        ({"pad_token": None}, "must have a token for padding"),
        ({"scale": float("nan")}, "features of text 0 must be finite"),
    ],
)
def test_unfit_models(
    library: Library, folder: Path, options: dict[str, Any], told: str
) -> None:
    for name, value in options.items():
        setattr(library, name, value)
    with pytest.raises(DataError, match=told):
        encode(TEXTS, folder)


def test_an_unused_pooler_may_be_missing(library: Library, folder: Path) -> None:
    library.missing = ("pooler.dense.weight",)
    assert encode(TEXTS, folder).shape == (23, WIDTH)


@pytest.mark.parametrize(
    ("texts", "options", "told"),
    [
        ([], {}, "`texts` must be at least one text"),
        ("text", {}, "`texts` must be a sequence of texts"),
        (TEXTS, {"pooling": "max"}, "`pooling` must be one of cls, mean"),
        (TEXTS, {"batch_size": 0}, "`batch_size` must be a whole number"),
        (TEXTS, {"max_length": 0}, "`max_length` must be a whole number"),
        (TEXTS, {"max_length": 200}, "`max_length` must be at most 192"),
        (TEXTS, {"device": "nowhere"}, "`device` must be one that PyTorch sees"),
    ],
)
def test_arguments(
    library: Library, folder: Path, texts: Any, options: dict[str, Any], told: str
) -> None:
    library.config = {"max_position_embeddings": 192}
    with pytest.raises(InvalidInputError, match=told):
        encode(texts, folder, **options)


def test_a_place_that_cannot_be_written(
    library: Library, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot write"):
        encode(TEXTS, folder)
    assert library.batches


@pytest.fixture
def news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ten and six rows of AG News, and features for them as the catalogue lists."""
    texts = [f"news {k}" for k in range(16)]
    rows = [f'"{k % 4 + 1}","news","{k}"\n' for k in range(16)]
    table = np.zeros((1, 768), np.float16)
    np.save(tmp_path / "table.npy", table)
    contents = [
        gzip.compress("".join(rows[:10]).encode(), mtime=0),
        gzip.compress("".join(rows[10:]).encode(), mtime=0),
        (tmp_path / "table.npy").read_bytes(),
        (tmp_path / "table.npy").read_bytes(),
    ]
    entry, files = CATALOGUE["ag_news"], []
    for file, content in zip(entry.files, contents, strict=True):
        place = tmp_path / "data" / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        sha256 = hashlib.sha256(content).hexdigest()
        files.append(DataFile(file.path, len(content), (sha256,)))
    monkeypatch.setenv("HEWFL_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(CATALOGUE, "ag_news", replace(entry, files=tuple(files)))
    return texts


@pytest.mark.usefixtures("library")
def test_the_file_loads(news: list[str], folder: Path, cache: Path) -> None:
    file = encode_ag_news(folder)
    assert file == cache / "encoded" / "ag_news-tiny-model.npz"
    dataset = load(file)
    wanted = np.array([expected(text, "cls") for text in news])
    np.testing.assert_allclose(dataset.features, wanted[:10], atol=ROUNDING)
    assert dataset.labels.tolist() == [k % 4 for k in range(10)]
    assert dataset.test is not None
    np.testing.assert_allclose(dataset.test[0], wanted[10:], atol=ROUNDING)
    assert dataset.test[1].tolist() == [k % 4 for k in range(10, 16)]
    assert dataset.classes == ("0", "1", "2", "3")
    with np.load(file) as archive:
        about = json.loads(str(archive["about"]))
    assert about == {
        "model": "tiny-model",
        "pooling": "cls",
        "max_length": 192,
        "format": 1,
    }


@pytest.mark.usefixtures("library", "news")
def test_the_command(folder: Path, tmp_path: Path) -> None:
    words = ["encode", "ag_news", "--model", str(folder), "--pooling", "mean"]
    result = CliRunner().invoke(data, [*words, "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    file = tmp_path / "out" / "ag_news-tiny-model-mean.npz"
    assert f"data.name={file}" in result.output.replace("\n", "")
    assert load(file).features.shape == (10, WIDTH)


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (("digits", "--model", "m"), "`name` must be ag_news", 2),
        (("ag_news", "--model", "./absent"), "no such folder", 1),
        (("ag_news", "--model", "m", "--pooling", "max"), "`pooling` must be", 2),
    ],
)
@pytest.mark.usefixtures("library", "news")
def test_the_command_says_what_is_wrong(
    words: tuple[str, ...], told: str, code: int
) -> None:
    result = CliRunner().invoke(data, ["encode", *words])
    assert result.exit_code == code
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
