"""Devices and links of the library by name, alias, or what a driver calls them."""

from __future__ import annotations

import re
from typing import Final

from apss_jax.importers.library import (
    library_aliases,
    library_match,
    library_names,
    read_library,
    unknown_name,
)
from apss_jax.schema.cluster import Device, Link, LinkFile

REMARK: Final = re.compile(r"\s*\(.*\)$")  # "H100-SXM5-80GB (700W)"
# What drivers call a device, where it is not the library's name with a maker before it.
DRIVER_NAMES: Final = {
    "H100 80GB HBM3": "H100-SXM5-80GB",
    "H100 PCIe": "H100-PCIe-80GB",
    "H200": "H200-SXM-141GB",
    "B200": "B200-SXM-180GB",
    "B300 SXM6 AC": "B300-SXM-288GB",
    "GB200": "GB200-NVL72",
    "GB300": "GB300-NVL72",
    "GH200 480GB": "GH200-96GB",
    "A100 80GB PCIe": "A100-PCIe-80GB",
    "A10G": "A10G-24GB",
    "L40S": "L40S-48GB",
    "T4": "T4-16GB",
    "H800": "H800-SXM5-80GB",
}
MAKERS: Final = re.compile(r"^(NVIDIA|Tesla|AMD Instinct|AMD)\s+", re.IGNORECASE)
SLICE: Final = re.compile(r"\bMIG\b")


def list_devices() -> tuple[str, ...]:
    """Returns the names of the known device types, aliases apart."""
    return library_names("devices")


def load_device(name: str, *, key: str = "--cluster", file: str | None = None) -> Device:
    """Returns a device type by name, alias or driver's name, in any case; raises `InputError`.

    A remark in parentheses after the name is ignored.
    """
    plain = REMARK.sub("", name.strip())
    found = _named(plain) or _driven(plain)
    if found is None:
        hint = "Or describe it in a cluster file."
        aliases = [alias.upper() for alias in library_aliases("devices")]
        raise unknown_name(key, name, "device", list_devices(), hint, aliases, file=file)
    return read_library(Device, "devices", found)


def load_link(name: str) -> Link:
    """Returns a link of the library by its exact name."""
    return read_library(LinkFile, "links", name).link


def driver_device(name: str | None) -> Device | None:
    """Returns the device that a driver's name means, None if unknown; a MIG slice is none."""
    found = _driven(name.strip()) if name else None
    return read_library(Device, "devices", found) if found else None


def _named(plain: str) -> str | None:
    return library_match("devices", plain) or library_aliases("devices").get(plain.casefold())


def _driven(name: str) -> str | None:
    if SLICE.search(name):
        return None
    plain = MAKERS.sub("", name)
    found = DRIVER_NAMES.get(plain) or library_match("devices", plain)
    return found or library_match("devices", plain.replace(" ", "-")) or _named(plain)
