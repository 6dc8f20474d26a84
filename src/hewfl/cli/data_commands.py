"""`hewfl data`: list, get, check, encode and show data sets."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import rich.progress
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from hewfl.cli.error_messages import as_option, one_line_errors
from hewfl.core.array_types import Int64
from hewfl.core.plugins import located
from hewfl.core.toml_records import errors_naming
from hewfl.core.validation import Ints, invalid
from hewfl.data.catalogue import CATALOGUE, Stock, entry_named, take_stock
from hewfl.data.dataset import Dataset
from hewfl.data.download import fetch, progress_bar
from hewfl.data.encode import OnBatch, encode_ag_news
from hewfl.data.load import check as check_dataset
from hewfl.data.load import load
from hewfl.data.partition import KINDS, Rows, Sharing, class_counts, share_out
from hewfl.data.partition_plot import draw_partition
from hewfl.data.paths import download_root
from hewfl.data.prepare import feature_rows, row_clients, row_labels, split_rows

data = typer.Typer(
    help="List, get, check, encode and show data sets.", no_args_is_help=True
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Label = Annotated[
    str | None, typer.Option(help="Column of the labels in a file; the last if absent.")
]

Client = Annotated[
    str | None,
    typer.Option(help="Column that says whose each row is: clients are these."),
]

_BAR = 24
_SHADES = " ░▒▓█"


@data.command("list")
def list_(*, as_json: AsJson = False) -> None:
    """List the data sets known by name, and which of them are here."""
    with one_line_errors():
        stocks = [take_stock(entry) for entry in CATALOGUE.values()]
    if as_json:
        typer.echo(json.dumps([_stock_record(stock) for stock in stocks], indent=1))
        return
    table = _table(
        "data sets", "name", "rows", "columns", "classes", "place", "licence"
    )
    for stock in stocks:
        entry = stock.entry
        table.add_row(
            entry.name,
            f"{sum(entry.samples):,}",
            str(entry.features),
            str(len(entry.classes)),
            _place(stock),
            entry.licence,
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


def _place(stock: Stock) -> str:
    if stock.state == "partly here":
        return f"{stock.place}, in part"
    if stock.place:
        return stock.place
    if stock.entry.is_downloadable:
        return f"{stock.entry.size / 1e6:.0f} MB to download"
    return "absent"


def _stock_record(stock: Stock) -> dict[str, Any]:
    entry = stock.entry
    return {
        "name": entry.name,
        "title": entry.title,
        "samples": entry.samples[0],
        "test_samples": entry.samples[1],
        "features": entry.features,
        "classes": entry.classes,
        "licence": entry.licence,
        "citation": entry.citation,
        "bytes": entry.size,
        "downloadable": bool(entry.files) and entry.is_downloadable,
        "state": stock.state,
        "place": stock.place,
    }


@data.command()
def get(
    names: Annotated[list[str], typer.Argument(help="Data sets, by name.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Download data sets that are not here, and check and parse them."""
    with one_line_errors():
        found = []
        for name in names:
            with progress_bar() as report:
                fetch(entry_named(name), report)
            found.append(load(name, download=False))
    _print_datasets(found, as_json=as_json)
    if not as_json:
        typer.echo(f"downloads are kept in {download_root()}")


@data.command()
def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Data sets by name, or files; all that are here if none."),
    ] = None,
    *,
    label: Label = None,
    client: Client = None,
    as_json: AsJson = False,
) -> None:
    """Verify checksums, parse, and say what was found; fail if anything is wrong."""
    with one_line_errors():
        stocks = [take_stock(entry) for entry in CATALOGUE.values()]
    here = [stock.entry.name for stock in stocks if stock.state != "absent"]
    wanted, found = names or here, []
    for name in wanted:
        is_file = (
            name not in CATALOGUE
        )  # the columns are those of files among the names
        columns = {"label": label, "client": client} if is_file else {}
        with contextlib.suppress(typer.Exit), one_line_errors(as_option):
            found.append(check_dataset(name, **columns))
    if found or as_json:
        _print_datasets(found, as_json=as_json)
    if len(found) < len(wanted):
        raise typer.Exit(1)


def _print_datasets(found: list[Dataset], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([_dataset_record(d) for d in found], indent=1))
        return
    columns = ("name", "rows", "columns", "type", "classes", "source")
    table = _table("sound data sets", *columns)
    for d in found:
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


@data.command()
def encode(
    name: Annotated[str, typer.Argument(help="Data set of texts: ag_news.")],
    *,
    model: Annotated[
        str, typer.Option(help="Encoder: a folder, or a name on the Hugging Face hub.")
    ],
    pooling: Annotated[
        str, typer.Option(help="cls (first token) or mean (of all tokens).")
    ] = "cls",
    batch_size: Annotated[int, typer.Option(min=1, help="Texts at once.")] = 64,
    device: Annotated[str, typer.Option(help="Of PyTorch: cpu, cuda, ...")] = "cpu",
    output: Annotated[
        Path | None, typer.Option(help="Folder of the file; in the cache if absent.")
    ] = None,
) -> None:
    """Turn texts into features by a frozen encoder, once, in a file for `data.name`.

    Started again, an interrupted encoding goes on.
    """
    with one_line_errors():
        if name != "ag_news":
            raise invalid("name", "ag_news, the data set that has texts", repr(name))
        with _row_bar() as on_batch:
            file = encode_ag_news(
                model,
                output,
                pooling=pooling,
                batch_size=batch_size,
                device=device,
                on_batch=on_batch,
            )
        found = load(file)
    _print_datasets([found], as_json=False)
    typer.echo(f"for a spec: --set data.name={file}")


@contextlib.contextmanager
def _row_bar() -> Iterator[OnBatch]:
    """A bar that counts rows on standard error, if that is a terminal."""
    console = Console(stderr=True)
    with rich.progress.Progress(
        rich.progress.TextColumn("encoding"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("left"),
        rich.progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bars:
        bar = bars.add_task("encoding", total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


@data.command()
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
    minimum: Annotated[int, typer.Option(min=0, help="Least samples of a client.")] = 1,
    per_client: Annotated[
        int, typer.Option(min=1, help="Classes or shards of a client.")
    ] = 2,
    seed: Annotated[int, typer.Option(min=0, help="Of split and partition.")] = 0,
    label: Label = None,
    client: Client = None,
    output: Annotated[
        Path | None, typer.Option(help="Save a picture here (.png, .pdf or .svg).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how the training part (80 % of the rows) is shared out among clients.

    The defaults are the paper's: 20 clients, label skew with concentration 0.2.
    """
    with one_line_errors(as_option):
        dataset = load(name, label=label, client=client)
        kind = partition or ("natural" if client else "iid" if iid else "dirichlet")
        if iid and kind != "iid":
            raise invalid("--iid", f"left out with --partition {kind}", "--iid")
        if client is not None and kind == "natural":
            clients = len(dataset.client_names)
        kind = str(located(kind, Path()))
        how = Sharing(kind, clients, alpha, minimum, per_client)
        rows = split_rows(dataset, seed)[0]
        labels = row_labels(dataset, rows)
        options = {name: f"--{name}" for name in ("alpha", "minimum", "partition")}
        options |= {"per_client": "--per-client", "n": "--clients"}
        with errors_naming(options):
            known = Rows(
                labels, feature_rows(dataset, rows), row_clients(dataset, rows)
            )
            shards = share_out(known, how, seed)
        counts = class_counts(labels, shards, len(dataset.classes))
        title = f"{dataset.name}: {clients} clients, {how.words}, seed {seed}"
        whose = dataset.client_names if kind == "natural" else ()
        if output is not None:
            draw_partition(counts, dataset.classes, title, output)
    if as_json:
        record = {"title": title, "classes": dataset.classes, "counts": counts.tolist()}
        record |= {"clients": whose} if whose else {}
        typer.echo(json.dumps(record))
        return
    Console().print(_partition_table(counts, dataset.classes, title, whose))
    if output is not None:
        typer.echo(f"picture saved in {output}")


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
