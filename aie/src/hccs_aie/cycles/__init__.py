"""The cycle model: schedules a kernel's trace on the VLIW slots. Its cycles are not measured."""
