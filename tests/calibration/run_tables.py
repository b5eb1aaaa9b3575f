"""Small tables of runs, written as a person would."""

from pathlib import Path

from apss_jax.schema.runs import Run

LLAMA = {
    "run_id": "mine-0001",
    "gpu_model": "H100-SXM5-80GB",
    "num_gpus": "16",
    "gpus_per_node": "8",
    "interconnect": "NVLink; RoCE 400 Gb/s per GPU",
    "model_name": "Llama 3.1 8B",
    "num_layers": "32",
    "hidden": "4096",
    "seq_len": "4096",
    "global_batch": "128",
    "micro_batch": "1",
    "tp": "2",
    "pp": "2",
    "framework": "NeMo 24.07",
    "precision": "bf16",
    "step_time_s": "4.0",
}


def run_of(**changes: str | None) -> Run:
    """Returns the run of the table above with some fields changed; None blanks one."""
    row = {**LLAMA, **changes}
    return Run.model_validate({name: text for name, text in row.items() if text})


def write_table(folder: Path, *rows: dict[str, str | None]) -> Path:
    """Writes runs that differ from the one above as a CSV file."""
    full = [{**LLAMA, **row} for row in rows]
    columns = list(dict.fromkeys(name for row in full for name in row))
    lines = [",".join(row.get(name) or "" for name in columns) for row in full]
    path = folder / "runs.csv"
    path.write_text("\n".join([",".join(columns), *lines]) + "\n")
    return path
