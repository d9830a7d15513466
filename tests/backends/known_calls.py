"""Calls that attention remembers, on a machine without a GPU: what kernels are stood in for by."""

import dataclasses
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hccs.backends.triton.attention import launch, plans, starting
from hccs.ops import copies


def stood_in_for(monkeypatch, instead):
    """The kernels of the last plan, each as `instead` makes it of the real one, and its tile."""
    seen = []

    def planned(*asked):
        plan = plans.plan_for.__wrapped__(*asked)
        if isinstance(plan, starting.SplitPlan):
            plan = dataclasses.replace(plan, kernels=tuple(map(instead, plan.kernels)))
            seen[:] = *plan.kernels, plan.tile
        else:
            plan = dataclasses.replace(plan, kernel=instead(plan.kernel))
            seen[:] = plan.kernel, plan.tile
        return plan

    active = SimpleNamespace(get_current_device=lambda: 3, get_current_stream="stream {}".format)
    runtime = SimpleNamespace(driver=SimpleNamespace(active=active))
    monkeypatch.setattr(starting, "triton", SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(launch, "plan_for", planned)
    monkeypatch.setattr(launch, "_known", {})
    monkeypatch.setattr(copies, "_kept", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # that of tensors on the host
    return seen
