"""Latency and bandwidth are found in samples, also in disturbed ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares

from apss_jax.schema.link_measurements import LinkSample
from profiler.fit import LEAST_WEIGHT, Samples, bus_fraction, bus_rates, fit_line, link_fit

SIZES = 1024.0 * 8.0 ** np.arange(7)


@given(latency_s=st.floats(1e-6, 1e-2), bytes_per_s=st.floats(1e7, 5e11))
def test_exact_samples_give_their_line(latency_s: float, bytes_per_s: float) -> None:
    """Whatever the line predicts at any size is what it was made of."""
    line = fit_line(SIZES, latency_s + SIZES / bytes_per_s)
    times_s = line.latency_s + SIZES / line.bytes_per_s
    np.testing.assert_allclose(times_s, latency_s + SIZES / bytes_per_s, rtol=1e-3)


def test_one_disturbed_sample_changes_little() -> None:
    """A sample 20 times too slow moves the rate by less than 5 %; other fits by more than 10 %."""
    times_s = 1e-4 + SIZES / 1e9
    times_s[5] *= 20
    assert fit_line(SIZES, times_s).bytes_per_s == pytest.approx(1e9, rel=0.05)
    least_squares_rate = 1 / np.polyfit(SIZES, times_s, 1)[0]
    for rate in (least_squares_rate, *_rates_of_squared_logs(times_s)):
        assert abs(rate / 1e9 - 1) > 0.1


def _rates_of_squared_logs(times_s: Samples) -> list[float]:
    """Returns the rates of fits whose relative errors are squared: all alike, and weighted."""
    start = np.log([1e-4, 1e-9])
    rates = []
    for weight in (1.0, np.maximum(LEAST_WEIGHT, np.sqrt(SIZES / SIZES[-1]))):

        def errors(logs: np.ndarray, weight: float | Samples = weight) -> Samples:
            latency_s, s_per_byte = np.exp(logs)
            return weight * np.log((latency_s + s_per_byte * SIZES) / times_s)

        rates.append(1 / np.exp(least_squares(errors, start).x[1]))
    return rates


def test_latency_is_never_negative() -> None:
    """Samples through which least squares draws a negative latency give a positive one."""
    times_s = 1e-5 + SIZES / 1e9 * np.array([1, 1, 1, 0.9, 0.9, 1, 1.3])
    assert np.polyfit(SIZES, times_s, 1)[1] < 0
    assert fit_line(SIZES, times_s).latency_s > 0


def test_buffers_that_swallow_short_messages_do_not_hide_the_bandwidth() -> None:
    """Only the two longest messages are slower than a buffer takes them: they decide the rate."""
    sizes = np.array([2.0**10, 2.0**14, 2.0**17, 2.0**20, 2.0**22])
    times_s = np.array([6e-4, 6e-4, 2e-3, 0.080, 0.335])  # 12.5 MB/s beyond 100 kB
    assert fit_line(sizes, times_s).bytes_per_s == pytest.approx(12.5e6, rel=0.05)


def test_one_size_is_refused() -> None:
    """Two unknowns need samples of two sizes."""
    with pytest.raises(ValueError, match="two sizes"):
        fit_line(np.array([1024.0, 1024.0]), np.array([1e-3, 1e-3]))


def test_bus_conventions_of_nccl_tests() -> None:
    """In a group of 4 an all-reduce moves 3/2 of its buffer, other collectives 3/4, a send all."""
    found = [bus_fraction(o, 4) for o in ("all_reduce", "all_gather", "all_to_all", "send")]
    assert found == [1.5, 0.75, 0.75, 1.0]


def test_fit_counts_what_crosses_the_link() -> None:
    """An all-reduce of 4 at 1 GB/s bus rate takes 1.5 ns per byte of its buffer."""
    samples = [_sample(size, 1e-4 + 1.5e-9 * size) for size in (10**5, 10**6, 10**7, 10**8)]
    found = link_fit("all_reduce", 4, samples)
    assert found is not None
    assert found.bus_bytes_per_s == pytest.approx(1e9, rel=1e-3)
    assert found.latency_s == pytest.approx(1e-4, rel=1e-2)
    assert bus_rates("all_reduce", 4, samples)[10**8] == pytest.approx(1e9, rel=2e-3)


def test_the_fastest_repeats_may_be_fitted() -> None:
    """Medians twice as long as the fastest repeats halve the fitted rate."""
    samples = [_sample(size, 2 * size * 1e-9, size * 1e-9) for size in (10**6, 10**7, 10**8)]
    median, fastest = (link_fit("send", 2, samples, fastest=f) for f in (False, True))
    assert median is not None
    assert fastest is not None
    assert fastest.bus_bytes_per_s == pytest.approx(2 * median.bus_bytes_per_s, rel=1e-3)


def test_one_size_has_no_fit() -> None:
    """Samples of a single size are kept without a line through them."""
    assert link_fit("send", 2, [_sample(1024, 1e-3), _sample(1024, 2e-3)]) is None


def _sample(size: int, median_s: float, fastest_s: float | None = None) -> LinkSample:
    return LinkSample(message_bytes=size, median_s=median_s, fastest_s=fastest_s or median_s)
