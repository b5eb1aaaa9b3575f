"""`python -m apss_jax.estimate`: time, memory and legality of one plan."""

from apss_jax.cli.estimate import main

if __name__ == "__main__":
    main()
