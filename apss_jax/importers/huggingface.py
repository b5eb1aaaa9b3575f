"""A Hugging Face `config.json` -> a model, or a sentence that says what cannot be represented."""

from __future__ import annotations

import re
from typing import Final

from pydantic import ValidationError

from apss_jax.importers import decoders, encoders, experts, gemma, gpt, hybrids, latent, multimodal
from apss_jax.importers.fields import HEADS, HIDDEN, INTERMEDIATE, LAYERS, Fields, changed
from apss_jax.schema.errors import InputError, mistake
from apss_jax.schema.model import Model

TEXT_SECTIONS: Final = ("text_config", "llm_config", "language_config")
REMEDY: Final = 'Describe it as a model file of schema "apss.model/1"'

# A field that nothing read and that means a part nobody would build: the answer would be wrong.
UNBUILT: Final = re.compile(r"expert|(^|_)moe(_|$)|mamba|ssm_|lora_rank|per_layer_input|index_n")
HARMLESS: Final = re.compile(r"token|chunk|group|layer_freq|capacity")
PREDICTION: Final = re.compile(r"mtp|nextn")


FAMILIES: Final[dict[str, decoders.ModelFrom]] = {
    **decoders.FAMILIES,
    **gpt.FAMILIES,
    **experts.FAMILIES,
    **latent.FAMILIES,
    **hybrids.FAMILIES,
    **gemma.FAMILIES,
    **encoders.FAMILIES,
    **multimodal.FAMILIES,
}


def model_from_config(config: object, *, file: str | None = None, name: str | None = None) -> Model:
    """Returns the model that a `config.json` describes; raises `InputError`.

    What was assumed, or could not be described, stands in the model's `notes`.
    """
    if not isinstance(config, dict):
        raise mistake(
            "(whole file)", config, "must be a JSON object", "Give a config.json", file=file
        )
    f = Fields(config, file=file)
    try:
        model = build(f)
        return changed(model, name=name or _name(f), notes=tuple(f.notes))
    except ValidationError as error:  # a product of sizes that were each within bounds
        first = error.errors(include_url=False)[0]
        key = ".".join(str(step) for step in first["loc"]) or "(whole file)"
        raise mistake(key, first["input"], first["msg"], "Correct the sizes", file=file) from None


def build(f: Fields) -> Model:
    """Returns the model of a config, or of the language model inside one."""
    kind = model_type(f)
    if kind in FAMILIES:
        model = FAMILIES[kind](f)
        _refuse_unbuilt(f, kind)
        return model
    for section in TEXT_SECTIONS:
        inner = f.section(section)
        if inner is not None:
            return _language_part(f, inner, kind)
    raise _unknown(f, kind)


def _language_part(f: Fields, inner: Fields, kind: str) -> Model:
    if model_type(inner) not in FAMILIES:
        raise _unknown(inner, model_type(inner) or kind)
    f.note(f"{kind or 'the model'}: only its language model is counted and planned")
    return build(inner)


def model_type(f: Fields) -> str:
    """Returns the family, from `model_type` or else `architectures`; empty when neither says."""
    kind = f.text("model_type")
    if not kind:
        names = f.texts("architectures") or ()
        kind = next((_ARCHITECTURES[key] for key in map(_stem, names) if key in _ARCHITECTURES), "")
        kind = kind or (names[0] if names else _like_llama(f))
    return "gemma3_text" if kind == "gemma3" and not f.has("text_config") else kind


def _stem(architecture: str) -> str:
    stem = re.sub(r"(For[A-Z].*|LMHeadModel|Model)$", "", architecture)
    return re.sub(r"[^a-z0-9]", "", stem.lower())


_ARCHITECTURES: Final = {re.sub(r"[^a-z0-9]", "", kind.lower()): kind for kind in FAMILIES}


def _like_llama(f: Fields) -> str:
    needed = (HIDDEN[:1], LAYERS[:1], HEADS[:1], INTERMEDIATE[:1], ("vocab_size",))
    if not all(f.has(*names) for names in needed):
        return ""
    f.note("no model_type: read as a llama, with gated feed-forward parts and no biases")
    return "llama"


def _unknown(f: Fields, kind: str) -> InputError:
    if not kind:
        missing = next(
            (n[0] for n in (HIDDEN, LAYERS, HEADS) if not f.has(*n)), "intermediate_size"
        )
        rule = f"is missing, and so is {missing}: the architecture is unknown"
        return f.wrong("model_type", rule, "Add the model_type of the model's config.json")
    rule = f"{kind!r} is an architecture that this importer cannot represent"
    return f.wrong("model_type", rule, REMEDY)


def _refuse_unbuilt(f: Fields, kind: str) -> None:
    for key, value in f.unread():
        if PREDICTION.search(key) and value:
            f.note(f"{f.path}{key}: multi-token prediction of {kind} is not counted")
        elif UNBUILT.search(key) and not HARMLESS.search(key) and _means_something(value):
            rule = f"means a part that model_type {kind!r} does not have"
            raise f.wrong(key, rule, f"Correct model_type or the field's name, or {REMEDY.lower()}")
        elif key in ("vision_config", "audio_config") and value:
            f.note(f"{f.path}{key}: this part of {kind} is not counted and not planned")


def _means_something(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and value > 1) or (
        isinstance(value, (list, dict)) and bool(value)
    )


def _name(f: Fields) -> str:
    given = f.data.get("_name_or_path")
    if isinstance(given, str) and given.strip("/ "):
        return given.rstrip("/ ").rsplit("/", 1)[-1]
    return model_type(f)
