"""`python -m apss_jax.train`: trains the partitioning network."""

from apss_jax.cli.train import main

if __name__ == "__main__":
    main()
