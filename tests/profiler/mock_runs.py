"""Runs of the profiler on imitated devices and an imitated clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apss_jax.importers.clusters import load_device
from apss_jax.importers.load import load_model
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.machine import DeviceFacts, DeviceState, Machine
from profiler.budget import Budget
from profiler.context import MeasuringContext
from profiler.device_types import NamedType
from profiler.mocks import RooflineMeter
from profiler.points import Axes, planned, subjects_of
from profiler.session import Bench, Request, Session
from profiler.timing import Stopwatch

DEVICE = "H200-SXM-141GB"
STATE = DeviceState(clock_hz=1.9e9, max_clock_hz=1.98e9, throttle_reasons=())
SMALL_AXES = Axes((1, 2), (1024,), (1, 2), ("bf16",), ("none", "full"))


class Clock:
    """A clock that measurements move."""

    now_s = 0.0

    def __call__(self) -> float:
        """Returns what time it is."""
        return self.now_s

    def pass_time(self, seconds: float) -> None:
        """Lets time go by."""
        self.now_s += seconds


class Interrupted(RooflineMeter):
    """A device whose user presses Ctrl-C during the third measurement."""

    asked = 0

    def measure(self, point: Any) -> Any:
        """Returns a measurement, twice."""
        self.asked += 1
        if self.asked == 3:
            raise KeyboardInterrupt
        return super().measure(point)


def meter_of(
    clock: Clock, kind: type[RooflineMeter] = RooflineMeter, **kwargs: Any
) -> RooflineMeter:
    """Returns an imitated H200 whose measurements take time."""
    device = load_device(DEVICE).device_type
    return kind(DEVICE, device, pass_time=clock.pass_time, state=STATE, **kwargs)


def points_of(model: str = "llama-2-7b", axes: Axes | None = None) -> list[Any]:
    """Returns the points of a model, the most informative first."""
    return planned(subjects_of(load_model(model)), axes or Axes())


def mock_bench(
    clock: Clock, minutes: float | None = None, meter: RooflineMeter | None = None
) -> Bench:
    """Returns a machine with one imitated H200."""
    library = load_device(DEVICE)
    context = MeasuringContext(
        devices=("the device",),
        node_of_device=(0,),
        stopwatch=Stopwatch(),
        budget=Budget.of_minutes(minutes, clock),
    )
    return Bench(
        context=context,
        types={DEVICE: NamedType(DEVICE, library.device_type, library, "as in the library")},
        type_of_node=(DEVICE,),
        meters=(meter or meter_of(clock),),
        gather=lambda text: [text],
        device_facts=(DeviceFacts(device=0, node=0, name="NVIDIA H200"),),
        machine=Machine(cores=16, load_before=0.1, versions={"jax": "0.10.2"}),
    )


def mock_session(
    out: Path,
    clock: Clock,
    *,
    old: ClusterProfile | None = None,
    axes: Axes = SMALL_AXES,
    **bench: Any,
) -> Session:
    """Returns a run on an imitated H200 that measures a 7B model."""
    request = Request(out, (load_model("llama-2-7b"),), axes, 65_536, old)
    return Session(request, mock_bench(clock, **bench))
