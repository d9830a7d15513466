// Signals of Python during a long native call: Ctrl-C ends it.
#pragma once

#include <nanobind/nanobind.h>

#include "common/interruption.hpp"

namespace hccs {

// Handlers run on Python's main thread alone, in any Python code or in PyErr_CheckSignals, and may raise anything. What
// they raised is left set.
inline Interruption::Answer ask_for_signals() noexcept {
  namespace nb = nanobind;
  const nb::gil_scoped_acquire gil;
  try {
    const nb::module_ threading = nb::module_::import_("threading");
    if (!threading.attr("main_thread")().attr("ident").equal(threading.attr("get_ident")()))
      return Interruption::Answer::kNeverAsk;
  } catch (nb::python_error& raised) {
    raised.restore();
    return Interruption::Answer::kStop;
  }
  return PyErr_CheckSignals() == 0 ? Interruption::Answer::kGoOn : Interruption::Answer::kStop;
}

// Calls run(interruption) without the GIL, and raises what a handler of a signal raised in the meantime.
template <class Run>
void run_interruptibly(const Run& run) {
  Interruption interruption(ask_for_signals);
  {
    const nanobind::gil_scoped_release release;
    run(interruption);
  }
  if (interruption.requested()) nanobind::raise_python_error();
}

}  // namespace hccs
