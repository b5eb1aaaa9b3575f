"""A profile keeps what was measured on its links, and refuses measurements of what it lacks."""

from typing import Any

import pytest

from apss_jax.importers.clusters import load_cluster
from apss_jax.schema.cluster import ClusterProfile
from apss_jax.schema.errors import InputError

SAMPLE = {"message_bytes": 1024, "median_s": 1e-4, "fastest_s": 9e-5, "repeats": 5}
SEND = {"operation": "send", "link": "nvlink4", "devices": [0, 1], "samples": [SAMPLE]}
PAIR = {"sender": 0, "receiver": 9, "bytes_per_s": 2e10, "message_bytes": 1024}


def _profile(**changes: Any) -> ClusterProfile:
    body = load_cluster("2x8xH100-SXM5-80GB").to_json()
    link = next(iter(body["links"]))
    send = {**SEND, "link": link, **changes.pop("send", {})}
    pair = {**PAIR, **changes.pop("pair", {})}
    body.update(link_measurements=[send], pair_rates=[pair])
    return ClusterProfile.from_json(body)


def test_measurements_survive_writing_and_reading() -> None:
    """A profile with samples and pairs is the same after it was written and read."""
    profile = _profile()
    assert profile.link_measurements[0].samples[0].median_s == 1e-4
    assert ClusterProfile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    ("part", "change", "key"),
    [
        ("send", {"link": "rope"}, "link_measurements.0.link"),
        ("send", {"devices": [0, 16]}, "link_measurements.0"),
        ("send", {"devices": [3, 3]}, "link_measurements.0"),
        ("pair", {"receiver": 0}, "pair_rates.0"),
        ("pair", {"receiver": 16}, "pair_rates.0"),
    ],
)
def test_what_the_profile_lacks_is_refused(part: str, change: dict[str, Any], key: str) -> None:
    """A link or device that is not there, or one device twice, is named."""
    with pytest.raises(InputError, match=key):
        _profile(**{part: change})
