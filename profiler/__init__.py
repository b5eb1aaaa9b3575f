"""Measures what hardware does, and writes the cluster profiles that planning reads."""
