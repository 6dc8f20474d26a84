"""Folders of images, one folder for each class.

    photos/cat/1.png  photos/dog/2.jpg ...            one part, split by seed
    photos/train/cat/1.png  photos/test/cat/2.png     with a published test part

All images have one size; all are grey, or all have colours. Grey images of 16 bits keep
their range, transparency is left out.
"""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.data.cache import Parsed
from hewfl.data.dataset import checked_features, coded_labels, flat_images
from hewfl.errors import DataError, MissingExtraError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff")
"""Endings of the files that are read; others are left out."""


def read_folder(path: Path) -> Parsed:
    """The images below a folder, as rows of bytes.

    Raises:
        DataError: there are no classes or images, or images differ in size.
        MissingExtraError: Pillow is not installed.
    """
    parts = [path / "train", path / "test"]
    if not all(part.is_dir() for part in parts):
        parts = [path]
    listed = [_labelled_files(part) for part in parts]
    arrays: list[Any] = []
    shape: tuple[int, ...] = ()
    for files in listed:
        images = np.stack(_same_shape(path, [file for file, _ in files], shape))
        shape = images.shape[1:]
        arrays.append(images)
    labels = [np.array([name for _, name in files]) for files in listed]
    codes, classes = coded_labels(str(path), labels)
    rows = [flat_images(images)[0] for images in arrays]
    checked = [
        (checked_features(str(path), X, y), y) for X, y in zip(rows, codes, strict=True)
    ]
    test = checked[1] if len(checked) > 1 else None
    return Parsed(checked[0], test, classes, shape=flat_images(arrays[0])[1])


def _labelled_files(folder: Path) -> list[tuple[Path, str]]:
    """The image files of each class, in a fixed order."""
    files = [
        (file, place.name)
        for place in sorted(folder.iterdir())
        if place.is_dir()
        for file in sorted(place.rglob("*"))
        if file.suffix.lower() in IMAGES
    ]
    if not files:
        rule = f"folders of classes with images ({', '.join(IMAGES)})"
        raise DataError(f"{folder} must hold {rule}; got none")
    return files


def _same_shape(path: Path, files: list[Path], shape: tuple[int, ...]) -> list[Any]:
    """The images of files, which must all have the shape of the first."""
    images = []
    for file in files:
        image = _read(file)
        shape = shape or image.shape
        if image.shape != shape:
            got = f"{image.shape} in {file.relative_to(path)}, and {shape} before it"
            raise DataError(f"{path}: images must have one size; got {got}")
        images.append(image)
    return images


def _read(file: Path) -> Any:
    """An image as numbers: (height, width), or with three colours behind, as bytes."""
    try:
        read_image: Any = importlib.import_module("PIL.Image").open
    except ImportError as error:
        text = "folders of images need Pillow: install hewfl's extra images"
        raise MissingExtraError(text) from error
    try:
        with read_image(file) as image:
            if image.mode[0] in "IF":  # 16 or 32 bits: bytes would cut off bright parts
                return np.asarray(image)
            mode = "L" if image.mode in ("1", "L") else "RGB"
            return np.asarray(image.convert(mode))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} must be an image; got {error}") from error
