"""Runs the notebooks of docs/notebooks in one kernel, one after another, in an empty folder beside lab/.

python tools/notebooks.py            # runs them
python tools/notebooks.py --store    # and keeps their outputs, which the site shows
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
LONGEST = 600
"""Seconds a cell may take."""


def run(folder: str | Path) -> dict[Path, Any]:
    """Every notebook with its outputs; an error in a cell is raised. Names do not outlive their notebook."""
    made = {path: nbformat.read(path, as_version=4) for path in sorted(FOLDER.glob("*.ipynb"))}
    forget = nbformat.v4.new_code_cell("%reset -f")  # in a notebook of its own: running a cell stores it
    kernel = NotebookClient(
        nbformat.v4.new_notebook(cells=[forget]),
        timeout=LONGEST,
        resources={"metadata": {"path": str(folder)}},
    )
    with kernel.setup_kernel():
        for notebook in made.values():
            client = NotebookClient(notebook, km=kernel.km, timeout=LONGEST)
            client.kc = kernel.kc
            # The kernel stays, so that torch is imported once.
            kernel.execute_cell(forget, 0)
            for number, cell in enumerate(notebook.cells):
                client.execute_cell(cell, number)
    return made


def plain(notebook: Any) -> Any:
    """Without times, counts and what a terminal would redraw."""
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "execution_count" in output:
                    output["execution_count"] = None
    return notebook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "docs" / "notebooks"  # their paths lead from here to lab/
        folder.mkdir(parents=True)
        (Path(place) / "lab").symlink_to(ROOT / "lab")
        for path, notebook in run(folder).items():
            print(f"{path.name}: {sum(cell.cell_type == 'code' for cell in notebook.cells)} cells ran")
            if options.store:
                nbformat.write(plain(notebook), path)


if __name__ == "__main__":
    main()
