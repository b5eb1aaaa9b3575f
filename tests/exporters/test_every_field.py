"""Every field that an export has of a plan, by its name, for plans whose degrees all differ."""

from typing import Final

import pytest
from field_plans import (
    BACKWARDS,
    CHUNKED,
    CUT,
    EQUAL,
    GRADIENTS,
    HALVED,
    LATENT,
    LINED,
    PIPED,
    PLAIN,
    PREDICTING,
    REPLICATED,
    SHARDED,
    SPREAD,
    TYPES,
    UNEVEN,
)
from fields_said import READERS, Fields
from megatron_fields import (
    BRIDGE_CHUNKED,
    BRIDGE_GRADIENTS,
    BRIDGE_PREDICTING,
    BRIDGE_SHARDED,
    BRIDGE_UNEVEN,
    CHUNKED_FLAGS,
    LATENT_FLAGS,
    MESHES,
    PREDICTING_FLAGS,
    SHARDED_FLAGS,
    TYPES_FLAGS,
    UNEVEN_FLAGS,
    as_yaml,
    flags,
)
from other_fields import (
    DEEPSPEED_CUT,
    DEEPSPEED_PIPED,
    DEEPSPEED_PLAIN,
    JAX_BACKWARDS,
    JAX_EQUAL,
    MAXTEXT_EQUAL,
    MAXTEXT_LATENT,
    MAXTEXT_LINED,
    MAXTEXT_REPLICATED,
    TITAN_GRADIENTS,
    TITAN_HALVED,
    TITAN_REPLICATED,
    TITAN_SPREAD,
)

from apss_jax.exporters.formats import FORMATS, export_files
from apss_jax.legality.launch import Launch

CASES: Final[dict[str, tuple[Launch, Fields]]] = {
    "megatron, uneven": (UNEVEN, flags(UNEVEN_FLAGS)),
    "megatron, chunked": (CHUNKED, flags(CHUNKED_FLAGS)),
    "megatron, sharded": (SHARDED, flags(SHARDED_FLAGS)),
    "megatron, predicting": (PREDICTING, flags(PREDICTING_FLAGS)),
    "bridge, predicting": (PREDICTING, BRIDGE_PREDICTING),
    "flagscale, predicting": (PREDICTING, as_yaml(PREDICTING_FLAGS)),
    "bridge, uneven": (UNEVEN, BRIDGE_UNEVEN),
    "bridge, chunked": (CHUNKED, BRIDGE_CHUNKED),
    "bridge, sharded": (SHARDED, BRIDGE_SHARDED),
    "bridge, gradients": (GRADIENTS, BRIDGE_GRADIENTS),
    "deepspeed, piped": (PIPED, DEEPSPEED_PIPED),
    "megatron, latent": (LATENT, flags(LATENT_FLAGS)),
    "deepspeed, plain": (PLAIN, DEEPSPEED_PLAIN),
    "torchtitan, halved": (HALVED, TITAN_HALVED),
    "maxtext, latent": (LATENT, MAXTEXT_LATENT),
    "deepspeed, cut": (CUT, DEEPSPEED_CUT),
    "flagscale, uneven": (UNEVEN, as_yaml(UNEVEN_FLAGS)),
    "flagscale, chunked": (CHUNKED, as_yaml(CHUNKED_FLAGS)),
    "flagscale, sharded": (SHARDED, as_yaml(SHARDED_FLAGS)),
    "flagscale, types": (TYPES, {**as_yaml(TYPES_FLAGS), **MESHES}),
    "torchtitan, spread": (SPREAD, TITAN_SPREAD),
    "torchtitan, replicated": (REPLICATED, TITAN_REPLICATED),
    "torchtitan, gradients": (GRADIENTS, TITAN_GRADIENTS),
    "maxtext, equal": (EQUAL, MAXTEXT_EQUAL),
    "maxtext, replicated": (REPLICATED, MAXTEXT_REPLICATED),
    "maxtext, lined": (LINED, MAXTEXT_LINED),
    "jax, equal": (EQUAL, JAX_EQUAL),
    "jax, backwards": (BACKWARDS, JAX_BACKWARDS),
}


@pytest.mark.parametrize("case", CASES)
def test_every_field_is_the_plans(case: str) -> None:
    """An export has the fields that are listed, with the plan's values, and no other field."""
    launch, expected = CASES[case]
    framework = case.partition(",")[0]
    files, refused = export_files(launch, framework)
    assert refused == ()
    assert READERS[framework](files) == expected


def test_degrees_of_these_plans_differ() -> None:
    """One degree in place of another, or none at all, is another value of its field."""
    for launch, _ in CASES.values():
        plan = launch.plan
        degrees = [plan.tensor_parallel, plan.context_parallel, plan.data_parallel,
                   plan.expert_parallel, plan.pipeline_parallel]  # fmt: skip
        used = [degree for degree in degrees if degree > 1]
        assert len(set(used)) == len(used) >= 1


def test_every_format_is_read() -> None:
    """No format is without such a plan."""
    assert {case.partition(",")[0] for case in CASES} == set(READERS) == set(FORMATS)
