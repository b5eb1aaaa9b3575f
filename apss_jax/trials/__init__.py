"""Runs plans for real, on the devices at hand, and holds predictions against what they took."""
