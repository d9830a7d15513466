"""Project folders that a user with AI Engine tools can build: Vitis, IRON, or the `aie4ml` package."""

from hccs_aie.export.attention_project import AttentionProject
from hccs_aie.export.project import Project, ProjectFile, Target, plan
from hccs_aie.export.write import export

__all__ = ["AttentionProject", "Project", "ProjectFile", "Target", "export", "plan"]
