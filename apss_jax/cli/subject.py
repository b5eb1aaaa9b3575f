"""The model and the cluster that a command is about."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from apss_jax.schema.cluster import ClusterProfile
    from apss_jax.schema.model import Model


class Subject(NamedTuple):
    """What is trained, on what."""

    model: Model
    cluster: ClusterProfile


def load_subject(
    model: str | Model, cluster: str | ClusterProfile, stack: str | None, gpu: str | None = None
) -> Subject:
    """Returns model and cluster, loaded where only their names are given; raises `InputError`.

    Called before planning is imported, so that a wrong name, that of a stack too, is told at once
    and not after JAX has started.
    """
    from apss_jax.importers.clusters import load_cluster, load_stack
    from apss_jax.importers.load import load_model

    subject = Subject(
        load_model(model) if isinstance(model, str) else model,
        load_cluster(cluster, gpu=gpu) if isinstance(cluster, str) else cluster,
    )
    if stack is not None:
        load_stack(stack)
    return subject
