"""A pytest plugin that adds the softmax replacement of CONTRIBUTING to the registry, as its reader would."""

import re
import sys
import textwrap
import types
from pathlib import Path

from hccs_lab.surrogates import registry

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"
SECTION = (
    PAGE.read_text(encoding="utf-8").partition("## Another softmax replacement\n")[2].partition("\n## ")[0]
)
(EXAMPLE,) = re.findall(r"( *)```python\n(.*?)```", SECTION, re.DOTALL)

module = types.ModuleType("hccs_lab.surrogates.halving")
module.__spec__ = types.SimpleNamespace(name=module.__name__)
exec(compile(textwrap.dedent(EXAMPLE[1]), str(PAGE), "exec"), module.__dict__)
sys.modules[module.__name__] = module
registry.METHODS += (module.SURROGATE.name,)
