"""Partitions of a model's layers into pipeline stages: exact, balanced and uniform."""
