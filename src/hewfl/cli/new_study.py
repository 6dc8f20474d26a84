"""`hewfl new`: the files of a study to begin with, which run as they are."""

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from hewfl.cli.error_messages import one_line_errors
from hewfl.core.atomic import write_text
from hewfl.core.validation import invalid
from hewfl.experiments.spec import check_spec_name

FILES = ("study.toml", "my_rule.py", "my_attack.py", "my_data.py")


def new(
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
) -> None:
    """Write a study of your own to begin with: spec, rule, attack and data."""
    with one_line_errors():
        if folder.exists():
            raise invalid("folder", "one that does not exist yet", repr(str(folder)))
        check_spec_name(folder.name)
        source = resources.files("hewfl.cli") / "study_files"
        for name in FILES:
            text = (source / name).read_text("utf-8").replace("STUDY", folder.name)
            write_text(folder / name, text)
    for line in (
        f"wrote {', '.join(FILES)} in {folder}",
        f"  cd {folder}",
        "  python my_data.py      # writes data.csv; put your data in its place",
        "  hewfl run study.toml",
    ):
        typer.echo(line)
