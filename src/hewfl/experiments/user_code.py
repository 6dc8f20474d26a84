"""The user's own files of a run: a data file, and code that the spec names.

Their checksums are compared whenever a run is resumed: results of two versions of a
rule under one name must not be mixed.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hewfl.core.atomic import read_json, write_json
from hewfl.core.plugins import code_files, is_user_code, load
from hewfl.core.toml_records import one_of
from hewfl.core.validation import invalid
from hewfl.data import CATALOGUE
from hewfl.data import load as load_data
from hewfl.data.paths import file_sha256
from hewfl.data.user_files import SUFFIXES
from hewfl.errors import DataError
from hewfl.experiments.method_spec import GROUP, check_method
from hewfl.experiments.spec import USER_CODE, Spec
from hewfl.experiments.spec_sections import (
    LOCAL_STEPS_GROUP,
    PARTICIPATION_GROUP,
    make_local_steps,
    make_participation,
)

DATA, CODE = "data.json", "code.json"
"""Checksums of the data file and of the files of code, in a run's folder."""


def resolve_data(spec: Spec) -> Spec:
    """The spec with the absolute path of its data file, and n of natural clients.

    Raises:
        InvalidInputError: the data set is neither a known one nor a file, or natural
            clients have no column.
        DataError: the file is missing or damaged.
    """
    if spec.data.name not in CATALOGUE:
        if not spec.data.name.endswith(SUFFIXES):
            files = f"or a file ending in {', '.join(SUFFIXES)}"
            rule = one_of((*CATALOGUE, files), spec.data.name)
            raise invalid("data.name", rule, repr(spec.data.name))
        data = replace(spec.data, name=str(Path(spec.data.name).resolve()))
        spec = replace(spec, data=data)
        data_digest(spec)
    return _count_clients(spec) if spec.clients.partition == "natural" else spec


def _count_clients(spec: Spec) -> Spec:
    """The spec with the number of clients in its data."""
    data = spec.data
    if data.client_column is None:
        rule = 'given: clients.partition = "natural" goes by that column'
        raise invalid("data.client_column", rule, "nothing")
    dataset = load_data(
        data.name, label_column=data.label_column, client_column=data.client_column
    )
    clients = replace(spec.clients, n=len(dataset.client_names))
    clients.check_number()
    return replace(spec, clients=clients)


def data_digest(spec: Spec) -> str | None:
    """Checksum of the user's own data file; None where there is none."""
    if spec.data.name in CATALOGUE or spec.is_record:
        return None
    file = Path(spec.data.name)
    if not file.is_file():
        raise DataError(f"the data file {file} does not exist")
    return file_sha256(file)


def user_code_names(spec: Spec) -> dict[str, tuple[str, str]]:
    """The user's own code in a spec: by field, its name and group."""
    if spec.is_record:
        return {}
    asked: dict[str, tuple[Any, str]] = {
        f"methods[{k}].method": (m.method, GROUP) for k, m in enumerate(spec.methods)
    }
    for (section, name), group in USER_CODE.items():
        given = getattr(getattr(spec, section), name)
        kind = given.get("kind") if isinstance(given, Mapping) else given
        asked[f"{section}.{name}"] = (kind, group)
    return {field: code for field, code in asked.items() if is_user_code(*code)}


def load_user_code(spec: Spec) -> None:
    """Load all of the user's own code, and validate its fields in the spec."""
    for field, (name, group) in user_code_names(spec).items():
        if group == GROUP:
            where = field.removesuffix(".method")
            (method,) = (
                m for k, m in enumerate(spec.methods) if where == f"methods[{k}]"
            )
            check_method(method, where)
        elif group == LOCAL_STEPS_GROUP:
            make_local_steps(spec.clients.local_steps)
        elif group == PARTICIPATION_GROUP:
            make_participation(spec.clients.participation)
        else:
            load(name, group, field)


def record_user_files(folder: Path, spec: Spec) -> None:
    """Write the checksums of data and code if there are none, and copy the code."""
    digest = data_digest(spec)
    if digest is not None and not (folder / DATA).exists():
        write_json(folder / DATA, {"sha256": digest})
    names = user_code_names(spec).values()
    files = sorted({file for name in names for file in code_files(*name)})
    if files and not (folder / CODE).exists():
        for file in files:
            (folder / "code").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / "code" / file.name)
        write_json(folder / CODE, {str(file): file_sha256(file) for file in files})


def check_user_files(folder: Path, spec: Spec) -> None:
    """Require the data and code with which a run began."""
    known = read_json(folder / DATA, missing=True)
    changed = [spec.data.name] if known and data_digest(spec) != known["sha256"] else []
    code = read_json(folder / CODE, missing=True) or {}
    for file, digest in code.items():
        if not Path(file).is_file():
            raise DataError(f"the file {file} of the run {folder} does not exist")
        changed += [file] if file_sha256(Path(file)) != digest else []
    if changed:
        text = f"{changed[0]} has changed since the run {folder} began"
        raise DataError(f"{text}; give the spec another name, or delete the run")
