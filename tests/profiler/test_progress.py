"""The bar: how far a run is, what it measures, how long it will go on."""

from functools import partial

import pytest

from profiler.progress import WIDTH, Bar, bar_line


def test_a_line_tells_share_time_left_and_point() -> None:
    """A quarter is done, a minute and five seconds are left."""
    line = bar_line("gpt2 layer b1 s1024", 0.25, 65.2)
    assert line == f"[{'#' * 6:.<24}]  25%  1:05 left  gpt2 layer b1 s1024"


@pytest.mark.parametrize(("done", "marks"), [(-0.5, 0), (0.0, 0), (1.0, WIDTH), (1.7, WIDTH)])
def test_a_bar_is_never_longer_than_itself(done: float, marks: int) -> None:
    """A run that overdraws its time shows a full bar."""
    assert bar_line("it", done, 0.0).count("#") == marks


def test_a_terminal_has_one_line_that_is_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    """Each look clears the line; in the end it is empty."""
    bar = Bar(is_terminal=True)
    for done in (0.0, 0.5):
        bar("it", done, 9.0)
    bar.end()
    said = capsys.readouterr().err
    assert "\n" not in said
    assert said.count("\r\x1b[2K") == 3
    assert said.endswith("\x1b[2K")


def test_a_log_gets_a_line_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four points in fifteen seconds two are told, each on a line of its own."""
    bar = Bar(is_terminal=False)
    for number, now_s in enumerate((100.0, 103.0, 111.0, 115.0)):
        monkeypatch.setattr("profiler.progress.time.monotonic", partial(float, now_s))
        bar(f"point {number}", 0.1 * number, 60.0)
    bar.end()
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("  ")[2] for line in lines] == ["point 0", "point 2"]
