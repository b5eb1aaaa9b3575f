"""`search --export`: files where --out says, whole or not at all, and what is refused."""

import json
from pathlib import Path

import pytest
from called import CallFn, Done

QUESTION = "--model gpt2 --cluster 1x4xA100-SXM4-80GB --global-batch 32 --seq-len 1024 --top 1"


@pytest.fixture
def search(call: CallFn) -> CallFn:
    """Returns a function that searches a small question with further words."""

    def run(*words: str) -> Done:
        return call("search", *QUESTION.split(), *words)

    return run


def test_formats_have_their_folders(search: CallFn, tmp_path: Path) -> None:
    """Each format's files stand in its own folder, scripts may be run, stderr names them."""
    done = search("--out", "o", "--export", "megatron", "--export", "jax")
    assert done.code == 0
    files = sorted(str(f.relative_to(tmp_path / "o")) for f in (tmp_path / "o").rglob("*.*"))
    assert files == [
        "jax/plan_mesh.py",
        "megatron/arguments.txt",
        "megatron/launch.sh",
        "plan.json",
        "report.html",
        "result.json",
        "trace.json",
    ]
    assert (tmp_path / "o/megatron/launch.sh").stat().st_mode & 0o111
    assert "o/megatron" in done.err


def test_a_format_implies_its_stack(search: CallFn) -> None:
    """What Megatron runs is costed as Megatron runs it, and said to be assumed."""
    document = search("--out", "o", "--export", "megatron", "--json").document
    assert document["plans"][0]["stack"] == "megatron"
    assert any("--export megatron implies" in note for note in document["assumptions"])


def test_a_refusal_is_written_and_counted(search: CallFn, tmp_path: Path) -> None:
    """The search is answered all the same; the file has rule, reason and source."""
    words = ("--pin", "pp=4", "--pin", "dp=1", "--pin", "vpp=3")
    done = search(*words, "--out", "o", "--export", "megatron", "--export", "deepspeed", "--json")
    assert done.code == 0
    text = (tmp_path / "o/deepspeed/REFUSED.txt").read_text()
    assert "rule: interleaving" in text and "source: DeepSpeed" in text
    assert any("--export deepspeed is refused" in said for said in done.document["warnings"])
    assert json.loads((tmp_path / "o/result.json").read_text())["warnings"]


def test_uneven_stages_are_rounded_for_maxtext(search: CallFn, tmp_path: Path) -> None:
    """Where only equal stages are taken, the plan has them, and what that costs is said."""
    words = ("--pin", "pp=2", "--pin", "dp=2", "--pin", "vpp=1", "--stack", "megatron")
    done = search(*words, "--out", "o", "--export", "maxtext", "--json")
    split = [stage["chunks"][0]["num_layers"] for stage in done.document["plans"][0]["stages"]]
    assert split != [6, 6]
    text = (tmp_path / "o/maxtext/plan.yml").read_text()
    assert "num_layers_per_pipeline_stage: 6" in text
    assert "rounded to 6 layers each" in text
    assert any("rounded" in said for said in done.document["warnings"])


def test_nothing_is_replaced_silently(search: CallFn, tmp_path: Path) -> None:
    """A folder that is there is an error before the search; --force replaces our own files."""
    words = ("--out", "o", "--export", "megatron")
    (tmp_path / "o/megatron").mkdir(parents=True)
    assert "already there" in search(*words).err
    assert search(*words, "--force").code == 0
    assert (tmp_path / "o/megatron/launch.sh").exists()


def test_files_of_others_are_never_removed(search: CallFn, tmp_path: Path) -> None:
    """Even --force leaves a folder alone that holds what no export wrote."""
    (tmp_path / "o/megatron").mkdir(parents=True)
    (tmp_path / "o/megatron/notes.txt").write_text("mine")
    done = search("--out", "o", "--export", "megatron", "--force")
    assert (done.code, (tmp_path / "o/megatron/notes.txt").read_text()) == (2, "mine")
    assert "notes.txt" in done.err


def test_force_leaves_no_older_refusal(search: CallFn, tmp_path: Path) -> None:
    """A format that is taken now has no REFUSED.txt of an earlier search beside it."""
    folder = tmp_path / "o/megatron"
    folder.mkdir(parents=True)
    (folder / "REFUSED.txt").write_text("no")
    assert search("--out", "o", "--export", "megatron", "--force").code == 0
    assert not (folder / "REFUSED.txt").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--export", "megatron"), "Add --out DIR"),
        (("--out", "o", "--export", "megatorn"), "Did you mean megatron?"),
    ],
)
def test_wrong_words(search: CallFn, words: tuple[str, ...], said: str) -> None:
    """A missing folder or an unknown format is told with its remedy."""
    done = search(*words)
    assert done.code == 2
    assert said in done.err


def test_a_hostfile_to_a_launch_line(search: CallFn, call: CallFn, tmp_path: Path) -> None:
    """Host names go from the hostfile into the script."""
    (tmp_path / "hosts").write_text("big-3 slots=2\nbig-7 slots=2\n")
    words = "--model gpt2 --global-batch 32 --seq-len 1024 --top 1 --out o --export megatron"
    done = call("search", *words.split(), "--cluster", "hosts", "--gpu", "A100")
    assert done.code == 0
    assert "HOSTS=(big-3 big-7)" in (tmp_path / "o/megatron/launch.sh").read_text()
