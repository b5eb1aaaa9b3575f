"""Inputs that once ended in a traceback, each refused in words since."""

import pytest
from examples import ACESO, MEGATRON, NCCL, metis, piper, sailor, vectors
from fuzzing import outcome_of, own_folder
from readers import READERS

LONG = b"9" * 5000  # more digits than Python makes a number of


def changed(example: str | bytes, old: bytes, new: bytes) -> bytes:
    """Returns an example with one thing changed."""
    data = example.encode() if isinstance(example, str) else example
    assert old in data
    return data.replace(old, new, 1)


FOUND = [
    ("import nccl-tests", changed(NCCL[0], b"107.3", b"\x00")),
    ("import nccl-tests", changed(NCCL[0], b"6713.3", b"nan")),
    ("import nccl-tests", changed(NCCL[0], b"1048576    262144", LONG + b" 262144")),
    ("import nccl-tests", changed(NCCL[0], b"#  Rank  1", b"#  Bank  1")),
    ("import nccl-tests", NCCL[0].replace("node2", "node1").encode() * 9),
    ("import metis", changed(metis()[0], b"[10, 10", b'["10", 10')),
    ("import aceso", changed(ACESO[0], b",400.0,700.0", b"")),
    ("import aceso", changed(ACESO[0], b"400.0", b'"' + 140_000 * b"4" + b'"')),
    ("import piper", changed(piper()[0], b'"TMPCs": {', b'"TMPCs": "1", "a": {')),
    ("import piper", piper()[0].replace(b"1000.0", b"1e999")),
    ("import sailor", changed(sailor()[0], b"0.005", b"1e308")),
    ("import amp", changed(vectors()[0], b"'shape': (", b"'shape': ((")),
    ("import amp", changed(vectors()[0], b"(28,)", b"(9999999999,)")),
    ("import amp", changed(vectors()[0], b", 'fortran_order'", b",B'fortran_order'")),
    ("network sizes", b"[" * 100_000),
    ("word: model", b"m" * 300),
    ("word: model", b"./" + b"m" * 300),
    ("SLURM variables", "SLURM_JOB_NODELIST=gpu[\u00b2-\u00b3]\n".encode()),
    ("SLURM variables", b"SLURM_JOB_NODELIST=gpu[1-" + LONG + b"]\n"),
    ("SLURM variables", b"SLURM_JOB_NODELIST=" + b",".join([b"g[1-90000]"] * 40) + b"\n"),
]
GALVATRON = [
    (b'{"layernum[2]_bsz8_seq' + LONG + b'": 1.0}', 0),
    (b'{"allreduce_size_1_consec_1": 150.0}', 1),
]


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_an_input_is_refused(name: str, data: bytes) -> None:
    """One message says what is wrong with it."""
    reader = next(reader for reader in READERS if reader.name == name)
    with own_folder(reader) as folder:
        found = outcome_of(reader, data, folder)
    assert (found.kind, found.text) == ("refused", "")


@pytest.mark.parametrize(("data", "number"), GALVATRON)
def test_an_input_of_galvatron_is_refused(data: bytes, number: int) -> None:
    """A length of 5,000 digits and a group of one device are refused in words."""
    reader = [reader for reader in READERS if reader.name == "import galvatron"][number]
    with own_folder(reader) as folder:
        assert outcome_of(reader, data, folder).kind == "refused"


def test_a_ramp_up_of_many_digits_is_read() -> None:
    """A batch of 5,000 digits is no number that a rule could divide; the rest is read."""
    reader = next(reader for reader in READERS if reader.name == "Megatron arguments")
    with own_folder(reader) as folder:
        found = outcome_of(reader, changed(MEGATRON[1], b"16 16 1000", LONG), folder)
    assert found.kind == "read"
