"""The partitioning network: cuts of many pipelines at once, and which devices their stages get."""
