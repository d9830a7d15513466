"""Project folders that a user with AI Engine tools can build: Vitis, IRON, or the `aie4ml` package."""

from hccs.aie.export.project import Project, Target, find_table, plan
from hccs.aie.export.write import export

__all__ = ["Project", "Target", "export", "find_table", "plan"]
