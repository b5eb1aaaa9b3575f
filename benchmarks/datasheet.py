"""Wall time of unit tables: many settings at once, one alone, computed and measured."""

import time

from apss_jax.datasheet.table import UnitTables
from apss_jax.importers.clusters import load_cluster, load_stack
from apss_jax.importers.load import load_model
from apss_jax.schema.model import Embedding, LayerRun, Model
from apss_jax.schema.tables import Setting
from apss_jax.schema.workload import Workload

REPEATS = 5
SETTINGS = [
    Setting(tensor, context, 1, micro_batch, recompute, sequence_parallel)
    for tensor in (1, 2, 4, 8)
    for context in (1, 2)
    for micro_batch in (1, 2, 4, 8)
    for recompute in ("none", "selective", "full")
    for sequence_parallel in (False, True)
]
FOUR_TYPES = "2x8xH100+2x8xA100+1x8xL40S+1x8xV100"


def measured_model() -> Model:
    """Returns the model whose layers the cluster `amp-het-cluster` has measured."""
    layer = load_cluster("amp-het-cluster").shapes["layer"].layer
    return Model(
        name="measured",
        hidden_size=1024,
        embedding=Embedding(vocab_size=52256, num_positions=1024),
        layers=(LayerRun(repeat=24, layer=layer),),
    )


def wall_time_s(tables: UnitTables, settings: list[Setting]) -> float:
    """Returns the least wall time of building the tables from a fresh start."""
    times_s = []
    for _ in range(REPEATS):
        fresh = UnitTables(tables.model, tables.cluster, tables.workload, tables.stack)
        start = time.perf_counter()
        fresh.tables(settings)
        times_s.append(time.perf_counter() - start)
    return min(times_s)


def main() -> None:
    """Prints the time of each case."""
    workload = Workload(global_batch=512, seq_len=4096, precision="fp16")
    short = Workload(global_batch=32, seq_len=1024, precision="fp16")
    mixed, stack = load_cluster(FOUR_TYPES), load_stack("megatron")
    cases = {
        f"{name}, 4 types": UnitTables(load_model(name), mixed, workload, stack)
        for name in ("llama-3.1-405b", "gemma3-4b", "nemotron-h-8b", "deepseek-v3")
    }
    cases["measured, 2 types"] = UnitTables(
        measured_model(), load_cluster("amp-het-cluster"), short, load_stack("deepspeed")
    )
    print(f"{'milliseconds':28} {len(SETTINGS)} settings  1 setting")
    for name, tables in cases.items():
        many_s, one_s = wall_time_s(tables, SETTINGS), wall_time_s(tables, SETTINGS[:1])
        print(f"{name:28} {many_s * 1e3:12.1f} {one_s * 1e3:10.2f}")


if __name__ == "__main__":
    main()
