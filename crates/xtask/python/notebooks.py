"""Runs notebooks from top to bottom, each in its own folder; with `--keep` it saves them with their new outputs and figures.

Nothing about the machine or the time is saved. A cell with the tag `same` must print its saved output.
"""

import copy
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def has_figures(notebook: nbformat.NotebookNode) -> bool:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return any("image/png" in output.get("data", {}) for output in outputs)


def told(notebook: nbformat.NotebookNode) -> "dict[str, str]":
    """The outputs of cells with the tag `same`, by name."""
    cells = [cell for cell in notebook.cells if "same" in cell.metadata.get("tags", [])]
    return {cell.id: "".join(output.get("text", "") for output in cell.outputs) for cell in cells}


def main(keep: bool, paths: "list[Path]") -> None:
    bare, changed = [], []
    for path in paths:
        print(f"  {path.name}", file=sys.stderr, flush=True)
        notebook = nbformat.read(path, as_version=4)
        if not has_figures(notebook):
            bare.append(path.name)
        metadata, kept = copy.deepcopy(notebook.metadata), told(notebook)
        place = {"metadata": {"path": str(path.parent)}}
        NotebookClient(notebook, kernel_name="python3", record_timing=False, resources=place).execute()
        changed += [f"{path.name}: {name}" for name, text in told(notebook).items() if text != kept[name]]
        if keep:
            notebook.metadata = metadata
            nbformat.write(notebook, path)
    if bare and not keep:
        sys.exit(f"kept without figures: {', '.join(bare)}; `cargo xtask notebooks --keep` keeps them")
    if changed and not keep:
        sys.exit(f"cells print other than what is kept: {', '.join(changed)}; `cargo xtask notebooks --keep` keeps it")


main(sys.argv[1] == "--keep", [Path(name).resolve() for name in sys.argv[1:] if name != "--keep"])
