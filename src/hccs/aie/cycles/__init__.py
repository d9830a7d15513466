"""The cycle model: schedules what a kernel's trace recorded on the VLIW slots.

Its cycles are modelled, not measured.
"""
