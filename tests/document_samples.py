"""A value of any kind of document, made from the types of its fields."""

from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel


def filled(annotation: Any, full: bool) -> Any:
    """Returns a value of a type: with all that may be there, or with as little as may be."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return None if NoneType in inner and not full else filled(inner[0], full)
    if origin in MAKERS:
        return MAKERS[origin](inner, full)
    if issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        given = {name: f.annotation for name, f in fields if full or f.is_required()}
        return annotation(**{name: filled(kind, full) for name, kind in given.items()})
    return {int: 2, float: 0.5, str: "b", bool: full}[annotation]


def _several(inner: tuple[Any, ...], full: bool) -> tuple[Any, ...]:
    one = tuple(filled(each, full) for each in inner if each is not Ellipsis)
    return one * 2 if full and Ellipsis in inner else one


MAKERS: dict[Any, Callable[[tuple[Any, ...], bool], Any]] = {
    Annotated: lambda inner, full: filled(inner[0], full),
    Literal: lambda inner, full: inner[-1 if full else 0],
    tuple: _several,
    dict: lambda inner, full: {"a": filled(inner[1], full)},
}
