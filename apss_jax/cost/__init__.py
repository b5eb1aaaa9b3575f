"""Predicts what one strategy costs on one problem: time of a step and memory of each stage."""
