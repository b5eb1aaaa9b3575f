"""Which layouts share a unit table."""

import pytest
from builders import tiny_cluster, tiny_model, tiny_stack, tiny_workload

from apss_jax.planning.figures import settings_of
from apss_jax.planning.inputs import Inputs
from apss_jax.planning.tables import cost_tables
from apss_jax.schema.layout import Layout, Layouts

ALONE = Layout(2, 1, 1)
PIPED = Layout(2, 2, 1)


@pytest.mark.parametrize(("cpu_s", "num_tables"), [(0.0, 1), (1e-3, 2)])
def test_pipelines_have_tables_of_their_own_where_the_stack_tells(
    cpu_s: float, num_tables: int
) -> None:
    """One table stands for both layouts unless a pipeline costs the stack's host something."""
    stack = tiny_stack(tensor_pipeline_cpu_s=cpu_s)
    inputs = Inputs(tiny_model(), tiny_cluster(), tiny_workload(), stack)
    found = cost_tables(inputs, [ALONE.setting, PIPED.setting])
    assert set(found.by_setting) == set(found.index) == {ALONE.setting, PIPED.setting}
    assert len(set(found.index.values())) == num_tables


def test_layouts_as_columns_have_the_settings_of_single_ones() -> None:
    """Told apart, a column of layouts gives each its own setting; else one for both."""
    layouts = Layouts.of([ALONE, PIPED])
    settings, index = settings_of(layouts, tells_pipelines=True)
    assert [settings[i] for i in index] == [ALONE.setting, PIPED.setting]
    assert settings_of(layouts, tells_pipelines=False)[0] == [ALONE.setting]
