"""`hewfl data`: list, get, check and show data sets."""

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hewfl.cli.error_messages import as_option, one_line_errors
from hewfl.cli.options import Command
from hewfl.core.array_types import Int64
from hewfl.core.plugins import absolute_name
from hewfl.core.toml_records import rename_errors
from hewfl.core.validation import Ints, invalid
from hewfl.data.catalogue import (
    CATALOGUE,
    DatasetStatus,
    dataset_info,
    dataset_status,
)
from hewfl.data.dataset import Dataset
from hewfl.data.download import fetch, progress_bar
from hewfl.data.load import check as check_dataset
from hewfl.data.load import load
from hewfl.data.partition_plot import draw_partition
from hewfl.data.partitions import KINDS, PartitionSpec, TrainingRows, class_counts
from hewfl.data.partitions import partition as make_partition
from hewfl.data.paths import download_root
from hewfl.data.prepare import feature_rows, row_clients, row_labels, split_rows

data = typer.Typer(
    help="List, get, check and show data sets.",
    no_args_is_help=True,
    add_completion=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of the labels in a file; the last if absent.")
]

ClientColumn = Annotated[
    str | None,
    typer.Option(help="Column of the clients in a file."),
]

_BAR = 24
_SHADES = " ░▒▓█"


@data.command("list", cls=Command)
def list_(*, as_json: AsJson = False) -> None:
    """List the data sets known by name, and which of them are here."""
    with one_line_errors():
        statuses = [dataset_status(info) for info in CATALOGUE.values()]
    if as_json:
        typer.echo(
            json.dumps([_status_record(status) for status in statuses], indent=1)
        )
        return
    table = _table(
        "data sets", "name", "rows", "columns", "classes", "place", "licence"
    )
    for status in statuses:
        info = status.info
        table.add_row(
            info.name,
            f"{sum(info.samples):,}",
            str(info.features),
            str(len(info.classes)),
            _place(status),
            info.licence,
        )
    Console().print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in columns:
        numbers = name in ("rows", "columns", "classes")
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for column in table.columns[:-1]:
        column.no_wrap = True
    return table


def _place(status: DatasetStatus) -> str:
    if status.state == "partly here":
        return f"{status.place}, in part"
    if status.place:
        return status.place
    if status.info.is_downloadable:
        size = f"{status.info.size / 1e6:.0f} MB " if status.info.size else ""
        return f"{size}online"
    return "absent"


def _status_record(status: DatasetStatus) -> dict[str, Any]:
    info = status.info
    return {
        "name": info.name,
        "title": info.title,
        "samples": info.samples[0],
        "test_samples": info.samples[1],
        "features": info.features,
        "classes": info.classes,
        "licence": info.licence,
        "citation": info.citation,
        "bytes": info.size,
        "downloadable": bool(info.files) and info.is_downloadable,
        "state": status.state,
        "place": status.place,
    }


@data.command(cls=Command)
def get(
    names: Annotated[list[str], typer.Argument(help="Data sets, by name.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Download data sets that are not here, and check and parse them."""
    with one_line_errors():
        datasets = []
        for name in names:
            with progress_bar() as report:
                fetch(dataset_info(name), report)
            datasets.append(load(name, download=False))
    _print_datasets(datasets, as_json=as_json)
    if not as_json:
        typer.echo(f"downloads are kept in {download_root()}")


@data.command(cls=Command)
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Data sets by name, or files; all that are here if none."),
    ] = None,
    *,
    label_column: LabelColumn = None,
    client_column: ClientColumn = None,
    as_json: AsJson = False,
) -> None:
    """Verify checksums, parse, and print the result; fail if anything is wrong."""
    with one_line_errors():
        statuses = [dataset_status(info) for info in CATALOGUE.values()]
    here = [status.info.name for status in statuses if status.state != "absent"]
    wanted, datasets = names or here, []
    for name in wanted:
        is_file = (
            name not in CATALOGUE
        )  # the columns are those of files among the names
        columns = (
            {"label_column": label_column, "client_column": client_column}
            if is_file
            else {}
        )
        with contextlib.suppress(typer.Exit), one_line_errors(as_option):
            datasets.append(check_dataset(name, **columns))
    if datasets or as_json:
        _print_datasets(datasets, as_json=as_json)
    if len(datasets) < len(wanted):
        raise typer.Exit(1)


def _print_datasets(datasets: list[Dataset], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_dataset_record(d) for d in datasets], indent=1))
        return
    columns = ("name", "rows", "columns", "type", "classes", "source")
    table = _table("sound data sets", *columns)
    for d in datasets:
        record = _dataset_record(d)
        table.add_row(
            escape(d.name),
            f"{d.size:,}",
            str(record["features"]),
            record["dtype"],
            str(len(d.classes)),
            escape(d.source),
        )
    Console().print(table)


def _dataset_record(d: Dataset) -> dict[str, Any]:
    return {
        "name": d.name,
        "samples": len(d.labels),
        "test_samples": 0 if d.test is None else len(d.test[1]),
        "features": d.features.shape[1],
        "dtype": str(d.features.dtype),
        "classes": d.classes,
        "source": d.source,
    }


@data.command(cls=Command)
def show(  # noqa: PLR0913 - options of a command
    name: Annotated[
        str, typer.Argument(help="Data set by name, or a file.")
    ] = "digits",
    *,
    clients: Annotated[int, typer.Option(min=1, help="Clients n.")] = 20,
    alpha: Annotated[float, typer.Option(help="Dirichlet concentration α.")] = 0.2,
    partition: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(KINDS)}, or your own as file:Name."),
    ] = None,
    iid: Annotated[bool, typer.Option("--iid", help="Even shuffled shards.")] = False,
    min_samples: Annotated[
        int, typer.Option(min=0, help="Fewest samples of a client.")
    ] = 1,
    classes_per_client: Annotated[
        int, typer.Option(min=1, help="Classes or shards of a client.")
    ] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of split and partition.")] = 0,
    label_column: LabelColumn = None,
    client_column: ClientColumn = None,
    output: Annotated[
        Path | None, typer.Option(help="Save a picture here (.png, .pdf or .svg).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how the training part (80 % of the rows) is divided among clients.

    The defaults are the paper's: 20 clients, label skew with concentration 0.2.
    """
    with one_line_errors(as_option):
        dataset = load(name, label_column=label_column, client_column=client_column)
        kind = partition or (
            "natural" if client_column else "iid" if iid else "dirichlet"
        )
        if iid and kind != "iid":
            raise invalid("--iid", f"left out with --partition {kind}", "--iid")
        if client_column is not None and kind == "natural":
            clients = len(dataset.client_names)
        kind = str(absolute_name(kind, Path()))
        spec = PartitionSpec(kind, clients, alpha, min_samples, classes_per_client)
        rows = split_rows(dataset, seed)[0]
        labels = row_labels(dataset, rows)
        options = {"alpha": "--alpha", "partition": "--partition", "n": "--clients"}
        options |= {"min_samples": "--min-samples"}
        for name_ in ("classes_per_client", "shards_per_client"):
            options[name_] = "--classes-per-client"
        with rename_errors(options):
            known = TrainingRows(
                labels, feature_rows(dataset, rows), row_clients(dataset, rows)
            )
            shards = make_partition(known, spec, seed)
        counts = class_counts(labels, shards, len(dataset.classes))
        title = f"{dataset.name}: {clients} clients, {spec.description}, seed {seed}"
        names = dataset.client_names if kind == "natural" else ()
        if output is not None:
            draw_partition(counts, dataset.classes, title, output)
    if as_json:
        record = {"title": title, "classes": dataset.classes, "counts": counts.tolist()}
        record |= {"clients": names} if names else {}
        typer.echo(json.dumps(record))
        return
    Console().print(_partition_table(counts, dataset.classes, title, names))
    if output is not None:
        typer.echo(f"picture saved in {output}")


@data.command(
    hidden=True,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def encode() -> None:
    """Name the script that encodes texts."""
    text = "hewfl data encode no longer exists: use the script examples/encode_texts.py"
    raise click.UsageError(text)


def _partition_table(
    counts: Int64[Ints, "n c"],
    classes: tuple[str, ...],
    title: str,
    names: tuple[str, ...] = (),
) -> Table:
    """One row per client: its size as a bar, and shades for its mix of classes."""
    sizes = counts.sum(axis=1)
    table = Table(title=escape(title), title_justify="left")
    table.add_column("client", justify="right")
    table.add_column("samples", justify="right")
    table.add_column("size")
    table.add_column("share of each class within the client")
    for client, (size, row) in enumerate(zip(sizes, counts, strict=True)):
        bar = "█" * max(round(_BAR * size / sizes.max()), int(size > 0))
        shades = (_SHADES[_shade(k / max(size, 1))] * 2 for k in row)
        name = escape(names[client]) if names else str(client)
        table.add_row(name, f"{size:,}", Text(bar), Text("│".join(shades)))
    table.caption = f"classes, left to right: {escape(', '.join(classes))}"
    return table


def _shade(share: float) -> int:
    """0 only for none, 4 from three quarters on."""
    return 0 if share == 0 else min(1 + int(4 * share), 4)
