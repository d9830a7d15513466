"""Runs the examples of the `hccs` that is installed: docstrings of every module, and those of pages given.

    python tools/check_installed.py README.md ...

NumPy is enough: modules that want an extra which is not there are counted and passed over.
"""

from __future__ import annotations

import argparse
import doctest
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import hccs

# What must work with NumPy alone.
CORE = {
    "hccs.backends.cpu.instruction_sets",
    "hccs.calibration",
    "hccs.numbers",
    "hccs.ops.attention",
    "hccs.ops.softmax",
    "hccs.reference.softmax",
}


def modules() -> tuple[list[str], list[str]]:
    """The names of all modules that can be imported here, and of those that want something optional."""
    found, wanting = [], []
    for module in pkgutil.walk_packages(hccs.__path__, "hccs.", onerror=wanting.append):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            if module.name in CORE or (error.name or "").startswith("hccs"):
                raise
            wanting.append(module.name)
        else:
            found.append(module.name)
    return found, wanting


def page_examples(page: Path) -> str:
    """The `>>>` examples of a page's Python fences, one after another."""
    fences = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return "\n".join(fence for fence in fences if ">>>" in fence)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path)
    options = parser.parse_args()
    found, wanting = modules()
    if missing := sorted(CORE - set(found)):
        sys.exit(f"not installed: {', '.join(missing)}")
    failed = tried = 0
    for name in found:
        result = doctest.testmod(sys.modules[name])
        failed, tried = failed + result.failed, tried + result.attempted
    parser_of_examples, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    for page in options.pages:
        runner.run(parser_of_examples.get_doctest(page_examples(page), {}, page.name, str(page), 0))
    failed, tried = failed + runner.failures, tried + runner.tries
    print(f"hccs {hccs.__version__} in {Path(hccs.__file__).parent}")
    print(f"{tried} examples of {len(found)} modules and {len(options.pages)} pages, {failed} failed")
    print(f"{len(wanting)} modules want an extra that is not installed")
    if failed or not tried:
        sys.exit(1)


if __name__ == "__main__":
    main()
