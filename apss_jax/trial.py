"""`python -m apss_jax.trial`: runs plans for real on the devices at hand."""

from apss_jax.cli.trial import main

if __name__ == "__main__":
    main()
