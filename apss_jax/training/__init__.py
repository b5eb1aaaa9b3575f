"""Pre-training of the partitioning network on synthetic problems."""
