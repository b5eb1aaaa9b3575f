"""Stacks on classes of devices: how far off they are where enough runs tell them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from apss_jax.calibration.intervals import FEW_ROWS
from apss_jax.calibration.subject import Subject
from apss_jax.calibration.widths import Misses, Width, base_within
from apss_jax.schema.stack import DeviceError

DIGITS: Final = 4  # significant ones
Groups = Mapping[str, tuple[str, ...]]
"""Names of device types by the class that shares constants, a wider one first."""

UNLISTED: Final = ""  # the class of types that share no constants


def device_class(types: Sequence[str], groups: Groups) -> str | None:
    """Returns the class of a cluster's device types, None if they are of several."""
    classes = {
        next((group for group, names in groups.items() if name in names), UNLISTED)
        for name in types
    }
    return classes.pop() if len(classes) == 1 else None


def device_errors(
    subjects: Sequence[Subject], misses: Misses, width: Width, groups: Groups
) -> tuple[DeviceError, ...]:
    """Returns the error fractions of one stack's runs by class of devices, in its order.

    A class of few runs, or the only one, has none of its own: there the stack's holds.
    """
    classes = np.array([device_class(s.cluster.used_types, groups) for s in subjects], dtype=object)
    near = misses.far_doublings == 0
    found = []
    for name in [*groups, UNLISTED]:
        rows = classes == name
        if (rows & near).sum() < FEW_ROWS or rows.all():
            continue
        fraction = np.expm1(base_within(misses.chosen(rows & near), width))
        own = [subjects[i].cluster for i in np.flatnonzero(rows).tolist()]
        ran = {kind for cluster in own for kind in cluster.used_types}
        found.append(
            DeviceError(
                devices=tuple(sorted({*groups.get(name, ()), *ran})),
                step_time_error_fraction=float(f"{fraction:.{DIGITS}g}"),
            )
        )
    return tuple(found)
