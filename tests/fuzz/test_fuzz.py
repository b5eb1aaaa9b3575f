"""A few mutated inputs for every reader; `fuzzing.py` reads as many as one likes."""

from pathlib import Path

import pytest
from fuzzing import WATCH, input_of, outcome_of, outcomes, own_folder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import READERS, Reader

FEW, MORE = 20, 300
FINE = {"read", "refused"}
READER = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)


@pytest.fixture(autouse=True, scope="module")
def _watched() -> None:
    """Has Python tell what readers do: for good, as there is no way back."""
    import sys

    sys.addaudithook(WATCH)


def failures(reader: Reader, numbers: range) -> list[str]:
    """Returns what went wrong with inputs of a reader."""
    return [each.text for each in outcomes(reader, numbers) if each.kind not in FINE]


@READER
def test_every_example_is_read(reader: Reader) -> None:
    """What inputs are made from is valid: changes reach what lies behind the first check."""
    with own_folder(reader) as folder:
        kinds = [outcome_of(reader, data, folder) for data in reader.examples()]
    assert [(each.kind, each.text) for each in kinds if each.kind != "read"] == []


@READER
def test_a_few_mutated_inputs(reader: Reader) -> None:
    """Each is read or refused in words."""
    assert failures(reader, range(FEW)) == []


@pytest.mark.slow
@READER
def test_more_mutated_inputs(reader: Reader) -> None:
    """Each is read or refused in words, and the same way the second time."""
    numbers = range(FEW, FEW + MORE)
    assert failures(reader, numbers) == []
    assert outcomes(reader, numbers[:50]) == outcomes(reader, numbers[:50])


@READER
@given(data=st.binary(max_size=300))
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
def test_any_bytes(reader: Reader, data: bytes) -> None:
    """Bytes that nobody wrote for a reader are refused, or read."""
    with own_folder(reader) as folder:
        assert outcome_of(reader, data, folder).kind in FINE


def _fails(path: Path) -> None:
    raise KeyError("x")


def _hangs(path: Path) -> None:
    while True:
        pass


def _writes(path: Path) -> None:
    Path("elsewhere").write_text("x")


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (_fails, "failed: KeyError"),
        (_hangs, "failed: TooLongError"),
        (_writes, "wrote or started something"),
    ],
)
def test_a_wrong_reader_is_seen(read: object, kind: str) -> None:
    """The look finds a traceback, a reader without end, and one that writes."""
    reader = Reader("wrong", read, lambda: (b"1",))  # type: ignore[arg-type]
    with own_folder(reader) as folder:
        assert outcome_of(reader, b"1", folder).kind == kind


@READER
def test_inputs_can_be_made_again(reader: Reader) -> None:
    """An input is its reader's name and a number; most differ from each other."""
    made = [input_of(reader, number) for number in range(30)]
    assert made == [input_of(reader, number) for number in range(30)]
    assert len(set(made)) > 15
