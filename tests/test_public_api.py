"""The public names: found lazily, stable, and never hidden by a submodule."""

import pkgutil
from importlib import import_module

import numpy as np
import pytest

import apss_jax

FUNCTIONS = ["estimate_plan", "load_cluster", "load_model", "partition", "search_plans"]


def _import_every_submodule() -> list[str]:
    found = pkgutil.walk_packages(apss_jax.__path__, prefix="apss_jax.")
    names = [module.name for module in found]
    for name in names:
        import_module(name)
    return names


def test_no_function_shares_its_name_with_a_submodule() -> None:
    """A submodule of a function's name would replace the function once it is imported."""
    submodules = {module.name for module in pkgutil.iter_modules(apss_jax.__path__)}
    assert submodules & set(FUNCTIONS) == set()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_name_is_the_same_function_after_every_import(name: str) -> None:
    """Each name is callable, and importing all submodules does not change what it is."""
    first = getattr(apss_jax, name)
    assert len(_import_every_submodule()) > len(FUNCTIONS)
    assert callable(first)
    assert getattr(apss_jax, name) is first


def test_every_function_answers_twice() -> None:
    """With all submodules imported, each function called twice gives the same answer."""
    _import_every_submodule()
    assert _answers() == _answers()


def _answers() -> list[object]:
    """Returns what each public function answers on one small problem, in comparable form."""
    model = apss_jax.load_model("gpt2")
    cluster = apss_jax.load_cluster("1x4xA100-SXM4-80GB")
    plan = apss_jax.search_plans(model, cluster, global_batch=8, seq_len=1024).plans[0]
    cost = apss_jax.estimate_plan(model, cluster, plan)
    cuts = apss_jax.partition(
        np.ones((1, 4)), np.zeros((1, 3, 1)), num_stages=2, num_micro_batches=2, solver="exact"
    )
    return [model, cluster, plan, cost.plan, cuts.tolist()]


def test_dir_lists_the_public_names() -> None:
    """Tab completion shows every public function before it was first used."""
    assert set(FUNCTIONS) <= set(dir(apss_jax))


def test_an_unknown_name_is_refused() -> None:
    """A name that does not exist is an AttributeError that says so."""
    with pytest.raises(AttributeError, match="serch_plans"):
        apss_jax.serch_plans  # noqa: B018 - reading the attribute is what is tested
