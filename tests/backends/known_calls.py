"""Stand-ins for compiled kernels, so that calls that attention remembers run on a machine without a GPU."""

import dataclasses
import functools
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hccs.backends.triton.attention import launch, launch_plan, plans
from hccs.ops import copies


def stood_in_for(monkeypatch, instead):
    """The kernels of the last plan, each as `instead` makes it of the real one, and its tuning."""
    seen = []

    @functools.cache
    def planned(request):
        plan = plans.plan_for.__wrapped__(request)
        launches = [dataclasses.replace(own, kernel=instead(own.kernel)) for own in plan.launches]
        seen[:] = *(own.kernel for own in launches), plan.tuning
        return dataclasses.replace(plan, launches=tuple(launches))

    active = SimpleNamespace(get_current_device=lambda: 3, get_current_stream="stream {}".format)
    runtime = SimpleNamespace(driver=SimpleNamespace(active=active))
    tried = SimpleNamespace(runtime=runtime, __version__="3.6.0")
    monkeypatch.setattr(launch_plan, "triton", tried)
    monkeypatch.setattr(launch, "plan_for", planned)
    monkeypatch.setattr(launch, "_known", {})
    monkeypatch.setattr(copies, "_kept", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # that of tensors on the host
    return seen
