"""`python -m apss_jax.validate`: predictions against measured runs."""

from apss_jax.cli.validate import main

if __name__ == "__main__":
    main()
