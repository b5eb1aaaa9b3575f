"""Profiles that other tools measured, read into ours; one module for each tool."""
