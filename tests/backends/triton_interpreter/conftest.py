"""Kernels in Triton's interpreter, for machines without a GPU: `TRITON_INTERPRET=1 pytest <this folder>`.

Triton decides on import whether kernels are interpreted, so these tests need a process of their own; without
the variable nothing here is collected.
"""

import functools
import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]

if not collect_ignore_glob:
    import numpy as np
    import pytest

    from tests.backends.triton_interpreter.memory import watched

    interpreter = pytest.importorskip("triton.runtime.interpreter")
    language = interpreter.tl
    patch_tensor, patch_language = interpreter._patch_lang_tensor, interpreter._patch_lang
    reduce_one_by_one = interpreter.ReduceOps.generic_reduce

    def with_index(tensor, scope):
        """Its scalars are arrays of one element, which NumPy no longer takes as bounds of a loop."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def patched_once(function):
        """A kernel patches the language; what it calls would look through all of it again, at every call."""
        used = [part for part in function.__globals__.values() if part is language or part is language.core]
        if any(language.core.is_builtin(part.load) for part in used):
            return patch_language(function)
        return interpreter._LangPatchScope()

    def reduce_by_slices(self, given):
        """The same fold, first to last, of all rows at once; the interpreter goes element by element."""
        if self.axis is None:
            return reduce_one_by_one(self, given)
        shape = list(given[0].handle.data.shape)
        count = shape.pop(self.axis)
        found: tuple = ()
        for i in range(count):
            here = (self.to_tensor(np.take(x.handle.data, i, self.axis), x.dtype) for x in given)
            found = self.combine_fn.fn(*found, *here) if i else tuple(here)
            found = found if isinstance(found, tuple) else (found,)
        if self.keep_dims:
            shape.insert(self.axis, 1)
        folded = zip(found, given, strict=True)
        return [self.to_tensor(x.handle.data.reshape(shape), of.dtype) for x, of in folded]

    def fused(a, b, c):
        """a * b + c of float64, rounded once: the sum of all errors is rounded to odd before the last sum.

        For float32 long doubles are wide enough.
        """
        product = a * b
        error = (np.longdouble(a) * b - product).astype(np.float64)  # below 2^64 in all

        def two_sum(x, y):
            total = x + y
            part = total - x
            return total, (x - (total - part)) + (y - part)

        low, rest = two_sum(c, error)
        high, lower = two_sum(product, low)
        odd, lost = two_sum(rest, lower)
        even = odd.view(np.int64) & 1 == 0
        odd = np.where((lost != 0) & even, np.nextafter(odd, np.copysign(np.inf, lost)), odd)
        return high + odd

    def fma(self, a, b, c):
        if a.data.dtype == np.float64:
            return interpreter.TensorHandle(fused(a.data, b.data, c.data), a.dtype.scalar)
        exact = a.data.astype(np.longdouble) * b.data + c.data
        return interpreter.TensorHandle(exact.astype(a.data.dtype), a.dtype.scalar)

    known_type = functools.cache(interpreter._get_np_dtype)

    def numpy_type(kind):
        """The same; the interpreter makes its table of types at every call."""
        pointer = isinstance(kind.scalar, language.pointer_type)
        return np.dtype(np.uint64) if pointer else known_type(kind.scalar)

    interpreter._get_np_dtype = numpy_type
    # Sums and products would be computed once more in int64, for an assertion that is switched off.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.InterpreterBuilder.create_fma = fma
    interpreter._patch_lang_tensor, interpreter._patch_lang = with_index, patched_once
    interpreter.ReduceOps.generic_reduce = reduce_by_slices
    watched(interpreter)
