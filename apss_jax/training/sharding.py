"""Problems of one step spread over all devices."""

from typing import Any

import jax


def shared_out(values: Any) -> Any:
    """Returns arrays with their first axis spread over all devices, if it divides evenly."""
    devices = jax.devices()
    size = jax.tree.leaves(values)[0].shape[0]
    if len(devices) == 1 or size % len(devices):
        return values
    mesh = jax.make_mesh((len(devices),), ("batch",))
    spec: Any = jax.sharding.PartitionSpec
    return jax.device_put(values, jax.sharding.NamedSharding(mesh, spec("batch")))
