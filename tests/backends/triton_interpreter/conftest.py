"""Kernels in Triton's interpreter, for machines without a GPU: `TRITON_INTERPRET=1 pytest <this folder>`.

Triton decides on import whether kernels are interpreted, so these tests need a process of their own; without
the variable nothing here is collected.
"""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]

if not collect_ignore_glob:
    import pytest

    interpreter = pytest.importorskip("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def with_index(tensor, scope):
        """Its scalars are arrays of one element, which NumPy no longer takes as bounds of a loop."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = with_index
