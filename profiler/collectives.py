"""Times collectives and transfers between chosen devices, one group or several at once.

Sizes are counted as nccl-tests counts them (`apss_jax.schema.link_measurements`). Only processes
that own a member call an operation; times are gathered afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Float

from apss_jax.schema.link_measurements import Operation

GROUPS: Final = "groups"
RANKS: Final = "ranks"
ITEM_BYTES: Final = 4  # messages are FP32
WARM_UPS: Final = 2  # calls before those that count: compilation, connections

Groups = Sequence[Sequence[jax.Device]]
Message = Float[jax.Array, " _"]
"""The messages of all members side by side; inside an operation, those of one."""

RunFn = Callable[[Message], Message]
Repeats = Float[np.ndarray, " samples"]


@dataclass(frozen=True)
class Program:
    """A compiled operation with its input, ready to be called by the members."""

    run: RunFn
    message: Message
    message_bytes: int  # as nccl-tests counts, after rounding to whole items

    def call(self) -> Message:
        """Returns the result, once it is there."""
        return jax.block_until_ready(self.run(self.message))


def owns_member(groups: Groups) -> bool:
    """Returns whether a device of the groups belongs to this process."""
    here = jax.process_index()
    return any(device.process_index == here for group in groups for device in group)


def make_program(operation: Operation, groups: Groups, message_bytes: int) -> Program:
    """Returns the operation over each of the groups, all at the same time.

    Transfers are between groups of two: from the first to the second, or both ways.
    """
    size = len(groups[0])
    mesh = Mesh(np.array([list(group) for group in groups]), (GROUPS, RANKS))
    items = _items_per_device(operation, size, message_bytes)
    split = Spec((GROUPS, RANKS))
    body = _BODIES[operation]
    program = jax.shard_map(body, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    message = jax.make_array_from_callback(
        (items * size * len(groups),),
        NamedSharding(mesh, split),
        partial(_numbered, items),
    )
    counted = counted_bytes(operation, size, message_bytes)
    return Program(jax.jit(program), message, counted)


def counted_bytes(operation: Operation, group_size: int, message_bytes: int) -> int:
    """Returns the size that is measured for one that is asked for: whole items, as many for all."""
    gathered = group_size if operation == "all_gather" else 1
    return _items_per_device(operation, group_size, message_bytes) * ITEM_BYTES * gathered


def time_repeats(program: Program, meet: Program, repeats: int, calls: int = 1) -> Repeats:
    """Returns seconds per call in each repeat, as this process saw them.

    Before each repeat the members meet in a tiny operation, so that none waits for a late one.
    With several calls a repeat issues them one after the other and waits once, which leaves out
    what the host takes to launch; on CPU two calls under way could overtake each other.
    """
    for _ in range(WARM_UPS):
        program.call()
    times_s = np.empty(repeats)
    for i in range(repeats):
        meet.call()
        start = time.perf_counter()
        results = [program.run(program.message) for _ in range(calls)]
        jax.block_until_ready(results)
        times_s[i] = (time.perf_counter() - start) / calls
    return times_s


def calls_per_repeat() -> int:
    """Returns how many calls a repeat issues before it waits."""
    return 1 if jax.default_backend() == "cpu" else 10


def _items_per_device(operation: Operation, size: int, message_bytes: int) -> int:
    items = max(1, message_bytes // ITEM_BYTES)
    if operation == "all_gather":
        return max(1, items // size)
    if operation in ("reduce_scatter", "all_to_all"):
        return max(1, items // size) * size
    return items


def _numbered(items: int, index: Any) -> Float[np.ndarray, " samples"]:
    """Returns a device's message: its 1-based place among all members, everywhere."""
    return np.full(items, 1 + (index[0].start or 0) // items, np.float32)


def _all_reduce(values: Message) -> Message:
    return lax.psum(values, RANKS)


def _all_gather(values: Message) -> Message:
    return lax.all_gather(values, RANKS, tiled=True)


def _reduce_scatter(values: Message) -> Message:
    return lax.psum_scatter(values, RANKS, tiled=True)


def _all_to_all(values: Message) -> Message:
    return lax.all_to_all(values, RANKS, 0, 0, tiled=True)


def _send(values: Message) -> Message:
    return lax.ppermute(values, RANKS, [(0, 1)])


def _exchange(values: Message) -> Message:
    return lax.ppermute(values, RANKS, [(0, 1), (1, 0)])


_BODIES: Final[dict[Operation, RunFn]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send": _send,
    "exchange": _exchange,
}
