"""From device, link and stack files and a model: the tables that a measurement would give."""
