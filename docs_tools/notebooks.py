"""Notebooks: run cell by cell, and as pages."""

import json
from pathlib import Path
from typing import Any

LIMIT = 900
"""Seconds after which a cell has failed; each takes a few on an idle machine."""


def run(path: Path) -> Any:
    """Run a notebook in a fresh kernel.

    Args:
        path: of the notebook.

    Returns:
        The notebook with its outputs, as `nbformat` holds it.

    Raises:
        CellExecutionError: of nbclient: a cell failed; the text has its traceback.
    """
    import nbformat  # noqa: PLC0415 - slow to import, and not needed to check pages
    from nbclient import NotebookClient  # noqa: PLC0415

    notebook: Any = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=LIMIT,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    return notebook


def as_page(path: Path) -> str:
    """A notebook as Markdown: text, code and outputs.

    Args:
        path: of the notebook, which is run.

    Returns:
        The text of the page, with figures as data.
    """
    parts = []
    for cell in run(path).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [text for output in cell.outputs if (text := _shown(output))]
    parts.append(f"*This page is `notebooks/{path.name}` with its outputs.*")
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        if output["name"] == "stderr":
            return ""
        return f"```text\n{output['text'].rstrip()}\n```"
    data = output.get("data", {})
    if "image/png" in data:
        return f"![figure](data:image/png;base64,{data['image/png'].strip()})"
    if "text/plain" in data:
        return f"```text\n{data['text/plain'].rstrip()}\n```"
    return ""


def without_outputs(path: Path) -> bool:
    """Whether a notebook is stored without outputs and counts."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
