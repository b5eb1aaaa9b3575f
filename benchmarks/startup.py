"""CPU time of what must be quick: a bare import, and `--help` of each command."""

import resource
import subprocess
import sys

REPEATS = 5
PROGRAMS = {
    "python -c pass": ["-c", "pass"],
    "import apss_jax": ["-c", "import apss_jax"],
    "search --help": ["-m", "apss_jax.search", "--help"],
    "estimate --help": ["-m", "apss_jax.estimate", "--help"],
}


def cpu_time_s(arguments: list[str]) -> float:
    """Returns the CPU time, user and system, of one fresh interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Prints the smallest and the largest CPU time of each program."""
    for name, arguments in PROGRAMS.items():
        times_s = [cpu_time_s(arguments) for _ in range(REPEATS)]
        print(f"{name:20} {min(times_s):6.3f} .. {max(times_s):6.3f} s CPU")


if __name__ == "__main__":
    main()
