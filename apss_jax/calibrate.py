"""`python -m apss_jax.calibrate`: a stack file from a few runs of one's own."""

from apss_jax.cli.calibrate import main

if __name__ == "__main__":
    main()
