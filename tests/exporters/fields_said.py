"""What each export says of a plan, field by field, as the framework's own reader would take it."""

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import yaml
from planned import Recorder, executed, modules

from apss_jax.importers.shell_words import flags_in

Fields = dict[str, Any]
ReadFn = Callable[[Mapping[str, str]], Fields]
PLACES: Final = ("ici", "dcn")  # inside hosts and across them
ARRAYS: Final = re.compile(r"^(\w+)_ARGS=\((.*?)^\)", re.MULTILINE | re.DOTALL)


def _megatron(files: Mapping[str, str]) -> Fields:
    """Returns the script's flags, those of the model apart; a switch has no words."""
    arrays = dict(ARRAYS.findall(files["launch.sh"]))
    lengths = {"--num-layers", "--mtp-num-layers", "--seq-length"}
    model = {name: words for name, words in flags_in(arrays["MODEL"]).items() if name in lengths}
    found = {**model, **flags_in(arrays["PARALLEL"]), **flags_in(arrays["BATCH"])}
    return {name: " ".join(words) for name, words in found.items()}


def _flat(data: Mapping[str, Any], prefix: str = "") -> Fields:
    """Returns the leaves of nested attributes or mappings by dotted name."""
    found: Fields = {}
    for name, value in data.items():
        inner = vars(value) if isinstance(value, Recorder) else value
        nested = isinstance(inner, dict)
        found |= _flat(inner, f"{prefix}{name}.") if nested else {f"{prefix}{name}": inner}
    return found


def _bridge(files: Mapping[str, str]) -> Fields:
    """Returns the fields that the module sets, by dotted name."""
    config = Recorder()
    executed(files["plan_overrides.py"])["apply_plan"](config)
    return _flat(vars(config))


def _deepspeed(files: Mapping[str, str]) -> Fields:
    """Returns the configuration, and what the module gives to the pipeline."""
    found = _flat(yaml.safe_load(files["ds_config.json"]))
    if "planned_pipeline.py" not in files:
        return found

    class Pipeline(Recorder):
        def __init__(self, layers: list[str], **settings: Any) -> None:
            """Keeps what the subclass gives."""
            super().__init__(settings=settings)

    with modules(
        deepspeed__pipe={"PipelineModule": Pipeline},
        deepspeed__runtime__pipe__topology={"PipeModelDataParallelTopology": dict},
    ):
        names = executed(files["planned_pipeline.py"])
    return found | names["PlannedPipeline"]([]).settings | {"PARTS": names["PARTS"]}


def _flagscale(files: Mapping[str, str]) -> Fields:
    """Returns the training configuration, the model's own sizes apart."""
    config = yaml.safe_load(files["train/plan.yaml"])
    kept = ("num_layers", "mtp_num_layers", "seq_length", "micro_batch_size", "global_batch_size")
    said = config["model"]
    return _flat(config["system"]) | {name: said[name] for name in kept if name in said}


def _torchtitan(files: Mapping[str, str]) -> Fields:
    """Returns the fields that the recipe sets."""
    source = files["planned/config_registry.py"]
    known = re.search(r"from torchtitan\.models\.(\w+)\.config_registry import (\w+)", source)
    family, recipe = known.groups() if known else ("none", "none")
    kinds = {name: Recorder(Config=lambda name=name: name) for name in ("FullAC", "SelectiveAC")}
    with modules(
        torchtitan__config={"ParallelismConfig": Recorder},
        torchtitan__distributed__activation_checkpoint=kinds,
        my_recipes={"base_recipe": Recorder},
        **{f"torchtitan__models__{family}__config_registry": {recipe: Recorder}},
    ):
        config = executed(source)["planned"]()
    return _flat(vars(config))


def _maxtext(files: Mapping[str, str]) -> Fields:
    """Returns the configuration; of each axis the product inside and across."""
    config = yaml.safe_load(files["plan.yml"])
    found = {name: value for name, value in config.items() if not name.endswith("_parallelism")}
    axes = {name[4:] for name in config if name.startswith(("ici_", "dcn_"))}
    return found | {axis: prod(config[f"{place}_{axis}"] for place in PLACES) for axis in axes}


def _jax(files: Mapping[str, str]) -> Fields:
    """Returns the constants of the module."""
    names = executed(files["plan_mesh.py"])
    found = {name: value for name, value in names.items() if name.isupper() and name != "P"}
    return found | {"SPECS": {role: tuple(axes) for role, axes in names["SPECS"].items()}}


READERS: Final[Mapping[str, ReadFn]] = {
    "megatron": _megatron,
    "bridge": _bridge,
    "deepspeed": _deepspeed,
    "flagscale": _flagscale,
    "torchtitan": _torchtitan,
    "maxtext": _maxtext,
    "jax": _jax,
}
