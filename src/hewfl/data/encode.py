"""Texts as features of a frozen encoder, computed once.

The model is any encoder of Hugging Face transformers, in a folder or by its name on the
hub. Blocks of rows are kept in the folder `encoded` of the user cache as they are
finished, so an encoding that was interrupted goes on, and one that was finished is
read. They are keyed by texts, model and options, and may be deleted at any time.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from hewfl.core.array_types import Float32
from hewfl.core.atomic import replacing
from hewfl.core.validation import Array, invalid, wholes
from hewfl.data.encoder import Encoder, Options, digest, encode_block, load_encoder
from hewfl.data.load import ag_news_texts
from hewfl.data.paths import cache_root
from hewfl.errors import DataError

FORMAT = 1
"""Raised when the same texts and model give other rows, so that old ones are not read.
"""

MAX_LENGTH = 192
"""Tokens of a text; the paper's (app:text_distilbert_head_only)."""

OnBatch = Callable[[int, int], None]
"""Told the rows that are done and the rows there are."""

_BLOCK = 512
_POOLINGS = ("cls", "mean")


def encode(  # noqa: PLR0913 - options with the paper's defaults
    texts: Sequence[str],
    model: str | Path,
    *,
    batch_size: int = 64,
    max_length: int = MAX_LENGTH,
    pooling: str = "cls",
    device: str = "cpu",
    on_batch: OnBatch | None = None,
) -> Float32[Array, "m width"]:
    """Features of texts: one row for each, from the encoder's last layer.

    The encoder is in evaluation mode and single precision; how texts are batched
    changes rows by rounding only.

    Args:
        texts: at least one.
        model: folder as `save_pretrained` writes it, or a name on the hub.
        batch_size: texts encoded at once.
        max_length: tokens, with the special ones, that a text is cut to.
        pooling: `cls`, the first token, is what DistilBERT's classifier looks at;
            `mean` is over all tokens of the text.
        device: of PyTorch.
        on_batch: called at the start, with the rows found in the cache, and after each
            batch.

    Returns:
        The rows, in the order of the texts.

    Raises:
        InvalidInputError: an argument breaks its rule.
        DataError: the model cannot be loaded or is no encoder, or the cache cannot be
            written.
        MissingExtraError: torch or transformers is not installed.
    """
    _check_arguments(texts, pooling, batch_size, max_length)
    encoder = load_encoder(model, device, Options(pooling, max_length, batch_size))
    folder = _folder(encoder, model, texts)
    blocks = _known_blocks(folder, len(texts))
    done = sum(len(rows) for rows in blocks.values())

    def report(more: int) -> None:
        nonlocal done
        done += more
        if on_batch is not None:
            on_batch(done, len(texts))

    report(0)
    for start in range(0, len(texts), _BLOCK):
        if start not in blocks:
            block = texts[start : start + _BLOCK]
            rows = encode_block(encoder, block, report)
            if not np.isfinite(rows).all():
                row = start + int(np.argmin(np.isfinite(rows).all(axis=1)))
                raise DataError(f"{model}: features of text {row} must be finite")
            _write(_block_file(folder, start, len(block)), partial(np.save, arr=rows))
            blocks[start] = rows
    return np.concatenate([blocks[start] for start in sorted(blocks)])


def encode_ag_news(
    model: str | Path,
    output: Path | None = None,
    *,
    batch_size: int = 64,
    pooling: str = "cls",
    device: str = "cpu",
    on_batch: OnBatch | None = None,
) -> Path:
    """Encode AG News into one NPZ file that `load` and `data.name` of a spec take.

    Its arrays are X, y, X_test and y_test, rows and labels as in `load("ag_news")`, and
    `about`, a JSON text with model and options.

    Args:
        model: as for `encode`.
        output: folder of the file; `encoded` in the user cache by default.
        batch_size: as for `encode`.
        pooling: as for `encode`.
        device: as for `encode`.
        on_batch: as for `encode`.

    Returns:
        The file, `ag_news-<model>.npz`, or `ag_news-<model>-mean.npz` for the mean.

    Raises:
        InvalidInputError: an argument breaks its rule.
        DataError: texts are absent, or as for `encode`.
        MissingExtraError: torch or transformers is not installed.
    """
    train, test = ag_news_texts()
    features = encode(
        (*train.texts, *test.texts),
        model,
        batch_size=batch_size,
        pooling=pooling,
        device=device,
        on_batch=on_batch,
    )
    about = {
        "model": _label(model),
        "pooling": pooling,
        "max_length": MAX_LENGTH,
        "format": FORMAT,
    }
    arrays: dict[str, Any] = {
        "X": features[: len(train.texts)],
        "y": train.labels,
        "X_test": features[len(train.texts) :],
        "y_test": test.labels,
        "about": np.array(json.dumps(about)),
    }
    suffix = "" if pooling == "cls" else f"-{pooling}"
    folder = _cache() if output is None else output.expanduser()
    file = folder / f"ag_news-{_label(model)}{suffix}.npz"
    _write(file, lambda stream: np.savez(stream, **arrays))
    return file


def _check_arguments(
    texts: Sequence[str], pooling: str, batch_size: int, max_length: int
) -> None:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise invalid("texts", "a sequence of texts", repr(texts)[:80])
    if not texts:
        raise invalid("texts", "at least one text", "none")
    if pooling not in _POOLINGS:
        raise invalid("pooling", f"one of {', '.join(_POOLINGS)}", repr(pooling))
    wholes("batch_size", batch_size, least=1)
    wholes("max_length", max_length, least=1)


def _label(model: str | Path) -> str:
    """A model's name as a part of file names."""
    folder = Path(model).expanduser()
    name = folder.resolve().name if folder.is_dir() else str(model)
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"


def _cache() -> Path:
    return cache_root() / "encoded"


def _folder(encoder: Encoder, model: str | Path, texts: Sequence[str]) -> Path:
    """Where blocks are kept: all that rows depend on, but for rounding, is the key."""
    options = [encoder.options.pooling, encoder.options.max_length]
    key = digest([FORMAT, encoder.identity, options, list(texts)])
    return _cache() / f"{_label(model)}-{key[:16]}"


def _block_file(folder: Path, start: int, count: int) -> Path:
    return folder / f"rows-{start:08}-{start + count:08}.npy"


def _known_blocks(folder: Path, m: int) -> dict[int, Float32[Array, "_ width"]]:
    """Blocks of earlier calls, by first row; those that are not sound are left out."""
    blocks = {}
    for start in range(0, m, _BLOCK):
        count = min(_BLOCK, m - start)
        try:
            file = _block_file(folder, start, count)
            rows = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            continue
        if rows.ndim == 2 and len(rows) == count and rows.dtype == np.float32:
            blocks[start] = rows
    return blocks


def _write(file: Path, save: Callable[[IO[bytes]], Any]) -> None:
    """Write a file whole or not at all, by a function that fills a stream."""
    try:
        with replacing(file) as stream:
            save(stream)
    except OSError as error:
        raise DataError(f"cannot write {file} ({error})") from error
