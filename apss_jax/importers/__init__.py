"""Reads what people bring and returns documents of `apss_jax.schema`."""
