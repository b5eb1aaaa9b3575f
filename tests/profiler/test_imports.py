"""Other tools' profiles become ours; a wrong unit, model or file is told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from import_graph import ROOT

from apss_jax.importers.clusters import load_cluster
from apss_jax.importers.load import load_model
from apss_jax.schema.cluster import ClusterProfile, LayerMeasurement
from apss_jax.schema.errors import InputError
from apss_jax.schema.model import Model
from profiler.commands import import_command
from profiler.imports.formats import FORMATS, import_profile
from profiler.imports.imported import Wanted, split_parts

REAL = ROOT.parent / "shared" / "data" / "layer_profiles"
A100 = "A100-SXM4-80GB"

PRINTED = """
# nThread 1 nGpus 8 minBytes 1048576 maxBytes 67108864 step: 8(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid   100 on     node1 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid   100 on     node1 device  1 [0x0f] NVIDIA A100-SXM4-80GB
#  Rank  2 Group  0 Pid   101 on     node2 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  3 Group  0 Pid   101 on     node2 device  1 [0x0f] NVIDIA A100-SXM4-80GB
#                                                       out-of-place              in-place
#     size     count    type  redop  root    time  algbw  busbw #wrong   time  algbw  busbw #wrong
#      (B) (elements)                        (us) (GB/s) (GB/s)          (us) (GB/s) (GB/s)
   1048576    262144   float    sum    -1   107.3   9.77  14.66      0  107.0   9.80  14.70      0
   8388608   2097152   float    sum    -1   841.3   9.97  14.96      0  841.0   9.97  14.96      0
  67108864  16777216   float    sum    -1  6713.3  10.00  14.99      0 6713.0  10.00  14.99      0
# Avg bus bandwidth    : 14.87
"""


def _model(layers: int, hidden: int = 1024) -> Model:
    model = load_model("gpt2-medium")
    (run,) = model.layers
    return model.model_copy(
        update={"hidden_size": hidden, "layers": (run.model_copy(update={"repeat": layers}),)}
    )


def _wanted(spec: str = f"2x8x{A100}", **changes: Any) -> Wanted:
    cluster = load_cluster(spec)
    base = Wanted(cluster, cluster.used_types[0], _model(24), 1024, "fp16")
    return replace(base, **changes)


def _layers(profile: ClusterProfile) -> list[LayerMeasurement]:
    return [row for row in profile.measurements if row.shape.endswith(" layer")]


def _written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_nccl_output_gives_samples_and_a_link(tmp_path: Path) -> None:
    """Four ranks on two hosts reach 15 GB/s: the network, over which two devices of a node send."""
    path = _written(tmp_path, "out.txt", PRINTED)
    profile = import_profile("nccl-tests", [path], _wanted())
    (found,) = profile.link_measurements
    assert (found.operation, found.devices, found.link) == ("all_reduce", (0, 1, 8, 9), "hdr200")
    assert found.samples[0].median_s == pytest.approx(107.3e-6)
    link = profile.links["hdr200"]
    assert link.bytes_per_s * link.reached_fraction == pytest.approx(15e9 / 2, rel=0.01)
    assert link.provenance == "imported"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(us)", "(ms)", r"is not in \(us\)"),
        ("  107.3   9.77  14.66", "  107.3  78.16 117.28", "a unit is wrong"),
        ("busbw", "bandwidth", "no column busbw"),
    ],
)
def test_units_of_nccl_output_are_checked(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A bandwidth in Gbit/s does not follow from size and time; another time unit is refused."""
    path = _written(tmp_path, "out.txt", PRINTED.replace(old, new))
    with pytest.raises(InputError, match=said):
        import_profile("nccl-tests", [path], _wanted())


def test_an_operation_that_the_output_leaves_open_is_asked_for(tmp_path: Path) -> None:
    """Gathering, scattering and all-to-all have one bus bandwidth: a flag says which it was."""
    text = PRINTED.replace(" sum ", "none ").replace("14.66", " 7.33").replace("14.9", " 7.4")
    text = text.replace(" 7.46", " 7.48").replace(" 7.49", " 7.50")
    path = _written(tmp_path, "out.txt", text)
    with pytest.raises(InputError, match="--operation"):
        import_profile("nccl-tests", [path], _wanted())
    told = import_profile("nccl-tests", [path], _wanted(operation="all_gather"))
    assert told.link_measurements[0].operation == "all_gather"


def test_amp_vectors_are_cut_where_the_layers_are(tmp_path: Path) -> None:
    """What stands before 24 equal layers is the embedding, what follows the head."""
    path = tmp_path / "gpt2_P3_2.npy"
    np.save(path, np.array([3e-4, 1e-4, *[5e-3] * 24, 1e-4, 2e-3]))
    profile = import_profile("amp", [path], _wanted())
    times = {row.shape.split()[-1]: row.forward_s for row in profile.measurements}
    assert times == pytest.approx({"embedding": 4e-4, "layer": 5e-3, "head": 2.1e-3})
    (layer,) = _layers(profile)
    assert (layer.tensor_parallel, layer.tensor_comm_included) == (2, True)
    assert (layer.backward_s, layer.provenance) == (None, "imported")


def test_sailor_files_give_every_point(tmp_path: Path) -> None:
    """Two micro-batches with their forward and backward passes, in seconds."""
    rows = {"0": [1e-3, 3e-6, 0.1], **{str(i): [5e-3, 9e-3, 0.1] for i in range(1, 25)}}
    data = {batch: {"1": {**rows, "25": [8e-3, 9e-3, 0.1]}} for batch in ("1", "4")}
    path = _written(tmp_path, "profile.json", data)
    profile = import_profile("sailor", [path], _wanted())
    assert [row.micro_batch for row in _layers(profile)] == [1, 4]
    assert _layers(profile)[0].backward_s == pytest.approx(9e-3)
    embedding = next(row for row in profile.measurements if "embedding" in row.shape)
    assert embedding.backward_s is None


def test_metis_gives_both_passes_as_one(tmp_path: Path) -> None:
    """Of 9 ms for both passes a third is the forward pass, and the profile says so."""
    path = _written(tmp_path, "DeviceType.A100_tp2_bs1.json", _metis())
    profile = import_profile("metis", [path], _wanted(model=_model(8)))
    (layer,) = _layers(profile)
    assert (layer.forward_s, layer.backward_s) == (pytest.approx(3e-3), pytest.approx(6e-3))
    assert any("third" in note for note in profile.notes)


def _metis(**changes: Any) -> dict[str, Any]:
    times = {"layer_compute_total_ms": [0.3, *[9.0] * 8, 0.4], "forward_backward_time_ms": 80.0}
    sizes = {"total_parameters_bytes": 100, "parameters_per_layer_bytes": [10] * 10}
    return {"model": {"parameters": sizes}, "execution_time": {**times, **changes}}


def test_metis_units_are_checked(tmp_path: Path) -> None:
    """Layers in microseconds do not add up to a pass in milliseconds."""
    wrong = _metis(layer_compute_total_ms=[300.0, *[9000.0] * 8, 400.0])
    path = _written(tmp_path, "DeviceType.A100_tp1_bs1.json", wrong)
    with pytest.raises(InputError, match="a unit is wrong"):
        import_profile("metis", [path], _wanted(model=_model(8)))


def test_galvatron_layers_are_differences(tmp_path: Path) -> None:
    """Two more layers take 10 ms longer: 5 ms each, at the length in the key."""
    data = {"layernum[2]_bsz8_seq512": 30.0, "layernum[4]_bsz8_seq512": 40.0}
    path = _written(tmp_path, "computation_profiling_bf16_x.json", data)
    profile = import_profile("galvatron", [path], _wanted(precision=None, seq_len=None))
    (layer,) = _layers(profile)
    assert (layer.forward_s, layer.micro_batch, layer.seq_len) == (pytest.approx(5e-3), 8, 512)
    assert layer.precision == "bf16"
    alone = _written(tmp_path, "computation_profiling_one.json", {"layernum[2]_bsz8_seq512": 3.0})
    with pytest.raises(InputError, match="one number of layers"):
        import_profile("galvatron", [alone], _wanted())


def test_galvatron_bandwidths_go_to_their_links(tmp_path: Path) -> None:
    """Eight neighbours are inside a node; sixteen, and stages of two nodes, use the network."""
    reduce = {"allreduce_size_8_consec_1": 150.0, "allreduce_size_16_consec_1": 40.0}
    files = [
        _written(tmp_path, "allreduce_bandwidth.json", reduce),
        _written(tmp_path, "p2p_bandwidth.json", {"pp_size_2": 8.0, "pp_size_16": 8.0}),
    ]
    profile = import_profile("galvatron", files, _wanted())
    inside, network = profile.links["nvlink3"], profile.links["hdr200"]
    assert inside.bytes_per_s * inside.reached_fraction == pytest.approx(150e9)
    assert network.bytes_per_s * network.reached_fraction == pytest.approx(40e9 / 8)
    assert network.bytes_per_s * network.transfer_fraction == pytest.approx(8e9)


def test_aceso_operators_add_up_and_collectives_are_samples(tmp_path: Path) -> None:
    """Operators of a layer in microseconds; an all-gather of 64 MB over 4 in milliseconds."""
    lines = ["op_name,forward-compute,backward-compute", "encoder-embedding,400.0,700.0"]
    lines += ["enc-attention-qkv,2000.0,4000.0", "enc-MLP-GEMM-1,3000.0,6000.0"]
    lines += ["final-layernorm,40.0,90.0", "gpt-post-process,4000.0,3000.0"]
    parts = _written(tmp_path, "gpt_350M_mbs2_tp2_algo0.csv", "\n".join(lines))
    table = "data_size(MB),time(ms)\n64,1.0\n8,0.2\n0,0.1\n"  # the last one is rounded to nothing
    link = _written(tmp_path, "prim_gpt_350M_all_gather_4gpus.csv", table)
    profile = import_profile("aceso", [parts, link], _wanted(precision=None))
    (layer,) = _layers(profile)
    assert (layer.forward_s, layer.backward_s) == (pytest.approx(5e-3), pytest.approx(10e-3))
    assert (layer.tensor_comm_included, layer.precision) == (False, "fp16")
    (found,) = profile.link_measurements
    assert [s.message_bytes for s in found.samples] == [8 * 2**20, 64 * 2**20]
    assert found.devices == (0, 1, 2, 3)


def test_piper_reads_layers_without_recomputation(tmp_path: Path) -> None:
    """Seconds for both passes and kept bytes of the plain variant; tensors take no time."""
    path = _written(tmp_path, "bert.json", {"nodes": _piper_nodes(24)})
    profile = import_profile("piper", [path], _wanted())
    (layer,) = _layers(profile)
    assert layer.forward_s + (layer.backward_s or 0) == pytest.approx(9e-3)
    assert layer.saved_bytes == 1000


def _piper_nodes(layers: int) -> list[dict[str, Any]]:
    def node(i: int, time_s: float) -> dict[str, Any]:
        plain = {"id": "vanilla", "timePerSample": time_s, "memoryUsageA": 1000.0}
        again = {"id": "activation recomp", "timePerSample": 2 * time_s, "memoryUsageA": 1.0}
        return {"id": i, "TMPCs": {"1": [plain, again]}}

    times = [0.0, 1e-3, *[9e-3] * layers, 2e-3]
    return [node(i, time_s) for i, time_s in enumerate(times)]


@pytest.mark.parametrize(("scale", "said"), [(1e-3, "of the peak"), (1e3, "of the peak")])
def test_a_time_no_device_can_have_is_refused(tmp_path: Path, scale: float, said: str) -> None:
    """Milliseconds taken for seconds, and the reverse, are a thousand times off any device."""
    path = tmp_path / "gpt2_P3_1.npy"
    np.save(path, scale * np.array([3e-4, *[1e-3] * 24, 2e-3]))
    with pytest.raises(InputError, match=said):
        import_profile("amp", [path], _wanted())


@pytest.mark.parametrize("layers", [12, 30, 23])
def test_a_model_with_other_layers_is_refused(layers: int) -> None:
    """Twenty-four equal entries are neither 12, 23 nor 30 layers, one more or less aside."""
    values = [1e-4, *[5e-3] * 24, 2e-3]
    if layers == 23:
        assert split_parts(values, 24, "f").layer == pytest.approx(5e-3)
        return
    with pytest.raises(InputError, match="Name the model"):
        split_parts(values, layers, "f")


@pytest.mark.parametrize("tool", sorted(set(FORMATS) - {"amp"}))
@pytest.mark.parametrize("content", ["", "{", '{"a": 1}', "[]", '{"nodes": 3}'])
def test_foreign_files_give_one_message(tmp_path: Path, tool: str, content: str) -> None:
    """A file that the tool did not write is refused by name."""
    names = {"metis": "A_tp1_bs1.json", "aceso": "gpt_mbs1_tp1_algo0.csv"}
    path = _written(tmp_path, names.get(tool, "file.json"), content)
    with pytest.raises(InputError, match=path.name):
        import_profile(tool, [path], _wanted(model=_model(8)))


def test_the_command_asks_for_what_files_do_not_say(tmp_path: Path) -> None:
    """Cluster, model, length, precision and device: each is asked for by its flag."""
    path = tmp_path / "gpt2_G4_1.npy"
    np.save(path, np.array([3e-4, *[5e-3] * 24, 2e-3]))
    out = str(tmp_path / "out.json")
    told: dict[str, Any] = {"cluster": "1x4xT4"}
    for flag, value in (("model", "gpt2-medium"), ("precision", "fp16"), ("seq_len", 1024)):
        with pytest.raises(InputError, match=f"--{flag.replace('_', '-')}"):
            import_command("amp", [str(path)], out=out, **told)
        told[flag] = value
    import_command("amp", [str(path)], out=out, **told)
    assert len(load_cluster(out).measurements) == 3
    with pytest.raises(InputError, match="--cluster"):
        import_command("amp", [str(path)], out=out, force=True)
    mixed = {**told, "cluster": "1x4xT4+1x4xV100-SXM2-16GB"}
    with pytest.raises(InputError, match="--device"):
        import_command("amp", [str(path)], out=out, force=True, **mixed)


REAL_FILES = pytest.mark.skipif(not REAL.is_dir(), reason="needs the profiles in ../shared")


@REAL_FILES
def test_real_amp_profiles_are_those_of_the_library() -> None:
    """AMP's own files give the figures that the shipped clusters hold."""
    shipped = load_cluster("amp-homogeneous")
    files = [REAL / "amp_known_cost" / f"gpt2_G4_{degree}.npy" for degree in (1, 2, 4)]
    bare = shipped.model_copy(update={"measurements": ()})
    profile = import_profile("amp", files, _wanted(cluster=bare, device_type="T4-16GB"))
    times = [row.forward_s for row in profile.measurements]
    expected = [row.forward_s for row in shipped.measurements]
    assert times == pytest.approx(expected, rel=1e-6)


@REAL_FILES
def test_real_reductions_on_a100_reach_what_is_known() -> None:
    """The longest message over eight A100: 1 GiB in 8,193,000 ns, of which 7/4 cross a link."""
    files = [REAL / "vtrain_nccl_lut" / "a100" / f"AR_GPU{n}_1M_1024M_LUT" for n in (2, 4, 8)]
    profile = import_profile("nccl-tests", files, _wanted(f"1x8x{A100}", operation="all_reduce"))
    assert [len(m.devices) for m in profile.link_measurements] == [2, 4, 8]
    link = profile.links["nvlink3"]
    by_hand = 2 * 7 / 8 * 2**30 / 8.193e-3
    assert link.bytes_per_s * link.reached_fraction == pytest.approx(by_hand, rel=0.005)


REAL_PROFILES = [
    ("sailor", "sailor/sailor_planner_profiles/OPT-350/V100-16/profile.json", {}, 45),
    (
        "metis",
        "metis_profile_data_samples/DeviceType.A100_tp*_bs*.json",
        {"layers": 8, "hidden": 4096},
        27,
    ),
    ("piper", "piper_inputs/bert32a100.json", {"layers": 32, "hidden": 1920}, 8),
    ("aceso", "aceso_eurosys_v100/gpt_350M_mbs*_tp*_algo0.csv", {}, 48),
    ("galvatron", "galvatron/9cf77a5*/*computation*.json", {"hidden": 4096}, None),
]


def _real(tool: str, files: str, wanted: dict[str, int]) -> ClusterProfile:
    """Returns what a tool's real files hold, read as its users ran it."""
    spec = "1x8xV100-SXM2-32GB" if "00-16" in files or "v100" in files else f"1x8x{A100}"
    wants = _wanted(
        spec,
        model=_model(wanted.get("layers", 24), wanted.get("hidden", 1024)),
        seq_len=2048 if "350" in files else 512,
        precision="fp32" if tool == "piper" else "fp16",
    )
    return import_profile(tool, sorted(REAL.glob(files)), wants)


@REAL_FILES
@pytest.mark.parametrize(("tool", "files", "wanted", "rows"), REAL_PROFILES)
def test_real_profiles_are_read(
    tool: str, files: str, wanted: dict[str, int], rows: int | None
) -> None:
    """Real files of each tool pass the checks of their units and give plausible layers."""
    profile = _real(tool, files, wanted)
    assert rows is None or len(profile.measurements) == rows
    assert len(_layers(profile)) >= 1


# A layer on one device at a micro-batch and a length, as it stands in the file, in its unit.
READ_BY_HAND = {
    # [0.028839, 0.071714, ...] s in 23 layers, the first is [0.029296, 0.070262, ...]
    "sailor": (4, 2048, (0.029296 + 23 * 0.028839) / 24, (0.070262 + 23 * 0.071714) / 24),
    # 29.507994651794434 ms for both passes of every layer
    "metis": (1, 512, 29.507995e-3 / 3, 29.507995e-3 * 2 / 3),
    # from 0.030285 to 0.030492 s for both passes
    "piper": (1, 512, 0.03038 / 3, 0.03038 * 2 / 3),
    # the microseconds of thirteen operators that begin with "enc-"
    "aceso": (
        1,
        2048,
        1e-6 * (43.201 + 232.781 + 261.933 + 312.105 + 480.573 + 344.818 + 72.763)
        + 1e-6 * (71.073 + 43.577 + 228.740 + 48.871 + 225.360 + 68.333),
        1e-6 * (111.570 + 399.668 + 594.165 + 409.398 + 415.585 + 491.234 + 123.279)
        + 1e-6 * (79.104 + 100.001 + 405.049 + 929.132 + 428.716 + 77.171),
    ),
    # models of one and of two layers, forward pass alone
    "galvatron": (1, 4096, 32.743318e-3 - 22.884448e-3, None),
}


@REAL_FILES
@pytest.mark.parametrize(("tool", "files", "wanted"), [real[:3] for real in REAL_PROFILES])
def test_real_times_are_those_of_the_files(tool: str, files: str, wanted: dict[str, int]) -> None:
    """One layer of each tool, read by hand: its unit, and which pass is which."""
    micro_batch, seq_len, forward_s, backward_s = READ_BY_HAND[tool]
    profile = _real(tool, files, wanted)
    (layer,) = [
        row
        for row in _layers(profile)
        if (row.tensor_parallel, row.micro_batch, row.seq_len) == (1, micro_batch, seq_len)
    ]
    assert layer.forward_s == pytest.approx(forward_s, rel=1e-3)
    assert layer.backward_s == (None if backward_s is None else pytest.approx(backward_s, rel=1e-3))
    assert layer.saved_bytes == (606478336 if tool == "piper" else None)  # "memoryUsageA"


@REAL_FILES
def test_real_bandwidths_of_galvatron_are_read() -> None:
    """Two nodes of eight: 155 GB/s inside, 5.6 GB/s for each device between them."""
    files = sorted(REAL.glob("galvatron/4504786*/*bandwidth*.json"))
    profile = import_profile("galvatron", files, _wanted())
    inside, network = profile.links["nvlink3"], profile.links["hdr200"]
    assert inside.bytes_per_s * inside.reached_fraction == pytest.approx(155.658e9)
    assert network.bytes_per_s * network.reached_fraction == pytest.approx(44.682e9 / 8)
