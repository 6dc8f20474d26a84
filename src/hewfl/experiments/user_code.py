"""The user's own files of a run: a data file, and code that the spec names.

A run has a copy of the code, which it executes: it can be read and resumed elsewhere.
Checksums of the copy and of the data are compared whenever a run is resumed, and those
of the code beside the spec whenever its spec is run: results of two versions of a rule
under one name must not be mixed.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.core.atomic import read_checksums, write_bytes, write_checksums
from hewfl.core.plugins import code_files, is_file, is_user_code, load
from hewfl.core.toml_records import one_of, rename_errors
from hewfl.core.validation import invalid
from hewfl.data import CATALOGUE
from hewfl.data import load as load_data
from hewfl.data.hugging_face import is_hugging_face
from hewfl.data.load import USERS, absolute_source, is_users, source_digest
from hewfl.data.paths import file_sha256
from hewfl.errors import DataError
from hewfl.experiments.method_spec import GROUP, check_method
from hewfl.experiments.spec import CODE as CODE_FOLDER
from hewfl.experiments.spec import Spec, code_folder, map_code, spec_table
from hewfl.experiments.spec_sections import (
    FAULTS_GROUP,
    LOCAL_STEPS_GROUP,
    PARTICIPATION_GROUP,
    make_local_steps,
    make_participation,
    make_scenario,
)

DATA, CODE = "data.json", "code.json"
"""Checksums of the data file and of the files of code, in a run's folder."""
OF_DATA = "data file"
"""What `DATA` calls its one file, whose path differs between machines."""


def resolve_data(spec: Spec) -> Spec:
    """The spec with the absolute path of its data file, and n of natural clients.

    Raises:
        InvalidInputError: the data set is neither a known one nor a file, or natural
            clients have no column.
        DataError: the file is missing or damaged.
    """
    if spec.data.name not in CATALOGUE:
        if not is_users(spec.data.name):
            rule = one_of((*CATALOGUE, f"or {USERS}"), spec.data.name)
            raise invalid("data.name", rule, repr(spec.data.name))
        data = replace(spec.data, name=absolute_source(spec.data.name))
        spec = replace(spec, data=data)
        data_digest(spec)
    return _count_clients(spec) if spec.clients.partition == "natural" else spec


def _count_clients(spec: Spec) -> Spec:
    """The spec with the number of clients in its data."""
    data = spec.data
    if data.client_column is None and data.name not in CATALOGUE:
        rule = 'given: clients.partition = "natural" goes by that column'
        raise invalid("data.client_column", rule, "nothing")
    dataset = load_data(
        data.name, label_column=data.label_column, client_column=data.client_column
    )
    if dataset.clients is None:
        rule = f"another one: {data.name} does not say whose its rows are"
        raise invalid("clients.partition", rule, '"natural"')
    clients = replace(spec.clients, n=len(dataset.client_names))
    clients.check_number()
    return replace(spec, clients=clients)


def data_digest(spec: Spec) -> str | None:
    """Checksum of the user's own data file; None where there is none."""
    if spec.data.name in CATALOGUE or spec.is_record:
        return None
    return source_digest(spec.data.name)


def user_code_names(spec: Spec) -> dict[str, tuple[str, str]]:
    """The user's own code in a spec: by field, its name and group."""
    names: dict[str, tuple[str, str]] = {}

    def note(name: Any, field: str, group: str) -> Any:
        if is_user_code(name, group):
            names[field] = name, group
        return name

    if not spec.is_record:
        map_code(spec_table(spec), note)
    return names


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
        elif group == FAULTS_GROUP:
            with rename_errors({"faults": "clients.scenario.faults"}):
                clients = np.ones(spec.clients.n, dtype=np.int64)
                make_scenario(spec.clients.scenario).assign(0, clients)
        else:
            load(name, group, field)


def code_places(spec: Spec) -> dict[str, Path]:
    """The files of the user's own code, by their paths in a run folder."""
    folders: dict[str, str] = {}
    places: dict[str, Path] = {}
    for name, group in user_code_names(spec).values():
        files = code_files(name, group)
        if not is_file(name):  # the copy shows what was run, and is not run itself
            own_place = f"{CODE_FOLDER}/0/{name.partition(':')[0]}.py"
            places |= dict.fromkeys([own_place], files[0]) if files else {}
            continue
        main = Path(name.rpartition(":")[0])
        place = code_folder(folders, main)
        for file in files:
            places[f"{place}/{file.relative_to(main.parent).as_posix()}"] = file
    return places


def record_user_files(folder: Path, spec: Spec) -> None:
    """Copy the code, and write the checksums of code and data, where there are none.

    Args:
        folder: of the run.
        spec: with the names of the code beside the spec, or of the copy.
    """
    digest = data_digest(spec)
    if digest is not None and not (folder / DATA).exists():
        write_checksums(folder / DATA, {OF_DATA: digest})
    places = code_places(spec)
    for place, source in places.items():
        if not (folder / place).exists():
            write_bytes(folder / place, source.read_bytes())
    if user_code_names(spec) and not (folder / CODE).exists():
        digests = {place: file_sha256(folder / place) for place in sorted(places)}
        write_checksums(folder / CODE, digests)


def check_user_files(
    folder: Path, spec: Spec, *, has_source: bool = False, asks_hub: bool = True
) -> None:
    """Require the data, and the copy of the code, with which a run began.

    Args:
        folder: of the run.
        spec: of the run.
        has_source: whether missing parts of the copy can be made again.
        asks_hub: as in `check_sources`.

    Raises:
        DataError: one of them is missing or has changed; the text says what to do.
    """
    check_sources(folder, spec, asks_hub=asks_hub)
    for place, digest in read_checksums(folder / CODE).items():
        if not (folder / place).is_file():
            if has_source:
                continue
            text = f"{folder / place} is missing: put it back, or run its spec again"
            raise DataError(text)
        if file_sha256(folder / place) != digest:
            raise _changed(str(folder / place), folder)


def check_sources(folder: Path, spec: Spec, *, asks_hub: bool = True) -> None:
    """Require the data of a run, and code as in its copy, if it has them yet.

    Args:
        folder: of the run.
        spec: with the names of the code beside the spec, or of installed modules.
        asks_hub: whether data of Hugging Face are looked up, by their own library,
            which may load them from the network.

    Raises:
        DataError: a file has changed.
    """
    is_asked = asks_hub or not is_hugging_face(spec.data.name)
    data = read_checksums(folder / DATA) if is_asked else {}
    if data and data_digest(spec) != data.get(OF_DATA):
        raise _changed(spec.data.name, folder)
    known = read_checksums(folder / CODE)
    for place, source in code_places(spec).items():
        copy = folder / place
        digest = file_sha256(copy) if copy.is_file() else known.get(place)
        if digest is None and known:  # a file that was not imported before
            raise _changed(str(source), folder)
        if digest is not None and file_sha256(source) != digest:
            raise _changed(str(source), folder)


def _changed(file: str, folder: Path) -> DataError:
    text = f"{file} has changed since the run {folder} began"
    return DataError(f"{text}; give the spec another name, or delete the run")
