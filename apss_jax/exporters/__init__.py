"""Plans as files that a framework's launcher reads, one module for each framework."""
