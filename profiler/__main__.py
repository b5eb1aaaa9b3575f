"""`python -m profiler`: measures the hardware at hand."""

from profiler.cli import main

if __name__ == "__main__":
    main()
