"""`python -m apss_jax.search`: ranks plans for a model on a cluster."""

from apss_jax.cli.search import main

if __name__ == "__main__":
    main()
