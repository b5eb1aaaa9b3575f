"""`estimate --megatron-args`: legal, fits, how fast, what the best plan would gain."""

from pathlib import Path

import pytest
from called import CallFn, Done

MODEL = "--num-layers 6 --hidden-size 256 --num-attention-heads 8 --vocab-size 1000"
BATCH = "--seq-length 128 --micro-batch-size 1 --global-batch-size 16 --bf16"
LAUNCHER = "--nproc-per-node 4 --nnodes 1"
PP = "--pipeline-model-parallel-size"


@pytest.fixture
def asked(call: CallFn, tmp_path: Path) -> CallFn:
    """Returns a function that estimates a script with some further arguments."""

    def run(more: str, *words: str) -> Done:
        (tmp_path / "train.sh").write_text(f"torchrun {LAUNCHER} x.py {MODEL} {BATCH} {more}\n")
        return call("estimate", "--megatron-args", "train.sh", *words)

    return run


def test_a_script_is_answered(asked: CallFn) -> None:
    """The layout, the split and the nodes are the script's; the gain of the best plan is there."""
    done = asked(f"{PP} 2", "--gpu", "A100", "--json")
    plan = done.document["plan"]
    assert (done.code, done.document["legal"]) == (0, True)
    assert (plan["pipeline_parallel"], plan["data_parallel"]) == (2, 2)
    assert [stage["chunks"][0]["num_layers"] for stage in plan["stages"]] == [3, 3]
    assert done.document["what_if"]["best"]["speedup"] >= 1
    assert any("data degree 2" in note for note in done.document["assumptions"])


def test_layers_that_would_be_lost_are_an_error(asked: CallFn) -> None:
    """Six layers on four stages: Megatron of old built four."""
    done = asked(f"{PP} 4", "--cluster", "1x4xA100", "--no-what-if", "--json")
    assert done.document["legal"] is False
    (rule,) = done.document["violations"]
    assert rule["rule"] == "even_layers"
    assert "build 4 layers" in rule["message"]


def test_the_layout_string_is_followed(asked: CallFn) -> None:
    """Uneven stages are costed as they are."""
    layout = "--pipeline-model-parallel-layout 'Ett|t*4L'"
    done = asked(f"{PP} 2 {layout}", "--gpu", "A100", "--no-what-if", "--json")
    stages = done.document["plan"]["stages"]
    assert [stage["chunks"][0]["num_layers"] for stage in stages] == [2, 4]
    assert "what_if" not in done.document


def test_devices_that_the_degrees_do_not_divide(asked: CallFn) -> None:
    """Three stages on four devices leave one over, which Megatron does not start with."""
    done = asked(f"{PP} 3", "--gpu", "A100", "--no-what-if", "--json")
    assert "world" in [each["rule"] for each in done.document["violations"]]


def test_the_text_says_the_gain(asked: CallFn) -> None:
    """People read how much faster the best plan is."""
    done = asked(f"{PP} 2 --recompute-granularity full --recompute-method uniform", "--gpu", "A100")
    assert "times as fast as this one" in done.out or "as fast as this one" in done.out


def test_a_line_instead_of_a_file(call: CallFn) -> None:
    """What begins with -- is the line itself."""
    done = call(
        "estimate",
        "--megatron-args",
        f"{LAUNCHER} {MODEL} {BATCH}",
        "--gpu",
        "A100",
        "--no-what-if",
        "--json",
    )
    assert done.document["plan"]["data_parallel"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tp", "2"], "cannot stand beside --tp"),
        (["--plan", "p.json"], "cannot stand beside --plan"),
    ],
)
def test_a_layout_is_given_once(asked: CallFn, words: list[str], said: str) -> None:
    """Flags or a plan beside the arguments would contradict them."""
    done = asked("", *words)
    assert done.code == 2
    assert said in done.err


def test_a_cluster_is_needed(asked: CallFn) -> None:
    """Neither --cluster nor --gpu: the message says how to mend it."""
    done = asked("")
    assert done.code == 2
    assert "--gpu" in done.err
