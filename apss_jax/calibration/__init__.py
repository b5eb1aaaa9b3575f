"""Predicted against measured: validation on tables of runs, and constants fitted to them."""
