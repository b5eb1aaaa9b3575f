"""Models given as tables of layers with given costs."""

import numpy as np
import pytest
from builders import tiny_cluster, tiny_stack, tiny_workload

from apss_jax.datasheet.table import unit_table
from apss_jax.schema.errors import InputError
from apss_jax.schema.model import LayerTable, Model, TableRow
from apss_jax.schema.stack import Stack
from apss_jax.schema.tables import Setting, UnitTable


def row(name: str = "a", **changes: object) -> TableRow:
    """Returns a row of 1 ms forward that keeps 34 kB and hands on 2 kB."""
    fields = {
        "name": name,
        "num_parameters": 1000,
        "forward_s": {"ideal": {"1": 1e-3, "2": 0.7e-3}},
        "output_bytes": 2000,
        "saved_bytes": 34000,
    }
    return TableRow(**{**fields, **changes})


def table(
    setting: Setting, *rows: TableRow, stack: Stack | None = None, included: bool = True
) -> UnitTable:
    """Returns the table of a model of rows."""
    model = Model(
        name="rows", table=LayerTable(rows=rows or (row(),), tensor_comm_included=included)
    )
    return unit_table(model, tiny_cluster(), tiny_workload(), stack or tiny_stack(), setting)


def test_one_sample_takes_the_given_times() -> None:
    """Each degree has its own; a missing backward pass is twice the forward one."""
    found = [table(Setting(tensor_parallel=t)).compute_s[:, 0, 0] for t in (1, 2)]
    np.testing.assert_allclose(found, [[1e-3, 2e-3], [0.7e-3, 1.4e-3]])


def test_given_backward_times_are_used() -> None:
    """A row that has them needs no assumption."""
    given = row(backward_s={"ideal": {"1": 5e-3}})
    assert table(Setting(), given).compute_s[1, 0, 0] == pytest.approx(5e-3)


def test_without_launches_time_is_proportional() -> None:
    """A stack whose host costs nothing leaves all of a row's time to the device."""
    assert table(Setting(micro_batch=8)).compute_s[0, 0, 0] == pytest.approx(8e-3)


def test_launches_do_not_grow() -> None:
    """Half a millisecond of a row is the host's: t(b)^6 = (b d)^6 + h^6."""
    device_s = (1 - 0.5**6) ** (1 / 6) * 1e-3
    found = table(Setting(micro_batch=3), stack=tiny_stack(cpu_forward_s=0.5e-3))
    expected_s = ((3 * device_s) ** 6 + 0.5e-3**6) ** (1 / 6)
    assert found.compute_s[0, 0, 0] == pytest.approx(expected_s)


def test_memory_traffic_bounds_what_the_host_can_explain() -> None:
    """However slow the host, 2 x 36 kB at 1 TB/s are the device's work."""
    found = table(Setting(micro_batch=10**6), stack=tiny_stack(cpu_forward_s=1.0))
    assert found.compute_s[0, 0, 0] == pytest.approx(10**6 * 72e3 / 1e12)


def test_full_recomputation_repeats_a_row_and_keeps_its_input() -> None:
    """The second row keeps what the first hands on."""
    found = table(Setting(recompute="full", micro_batch=2), row(), row("b", output_bytes=500))
    assert found.compute_s[1, 0, 0] == pytest.approx(2 * 3e-3)
    assert found.saved_bytes.tolist() == [4000, 4000]
    assert found.working_bytes.tolist() == [68000, 68000]


def test_the_last_row_hands_on_nothing() -> None:
    """Boundaries lie between rows."""
    assert table(Setting(micro_batch=2), row(), row("b")).boundary_bytes.tolist() == [4000, 0]


def test_tensor_ranks_divide_parameters_and_part_of_activations() -> None:
    """Of 34 parts of a layer's activations 10 stay whole, as in arXiv 2205.05198."""
    found = table(Setting(tensor_parallel=2))
    assert found.dense_parameters[0] == 500
    assert found.saved_bytes[0] == pytest.approx(1000 * (10 + 24 / 2))


def test_collectives_are_counted_where_rows_leave_them_out() -> None:
    """Two all-reduces of a row's output, and none where times contain them."""
    out, kept = (table(Setting(tensor_parallel=2), included=i) for i in (False, True))
    assert out.comm_bytes[:, 0, 0].tolist() == [8000, 8000]
    assert out.comm_calls[:, 0, 0].tolist() == [4, 4]
    assert not kept.comm_bytes.any()


def test_one_sample_counts_as_measured() -> None:
    """The given pass does; an assumed one and a larger micro-batch do not."""
    assert table(Setting()).measured_s[0, 0] == pytest.approx(1e-3)
    assert table(Setting(micro_batch=2)).measured_s[0, 0] == 0


def test_rows_have_no_ends_and_no_operations() -> None:
    """What rows do not say is not a number, never zero."""
    found = table(Setting())
    assert not found.has_ends
    assert np.isnan(found.model_flops).all()


@pytest.mark.parametrize(
    ("given", "setting", "words"),
    [
        (row(forward_s={"other": {"1": 1.0}}), Setting(), "'a'.*ideal"),
        (row(), Setting(tensor_parallel=4), "tensor degree 4"),
        (row(), Setting(context_parallel=2), "context_parallel"),
        (row(), Setting(expert_parallel=2), "expert_parallel"),
    ],
)
def test_what_rows_do_not_have_is_refused(given: TableRow, setting: Setting, words: str) -> None:
    """The message names the row and the device type, or the degree."""
    with pytest.raises(InputError, match=words):
        table(setting, given)
