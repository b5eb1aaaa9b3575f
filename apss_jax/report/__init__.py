"""Pages and pictures of results; they draw what a result holds and compute nothing."""
