"""Named rules: what a model, a cluster, a schedule and a framework allow, in words."""
