"""What a search takes: with nothing compiled, after setting up, once more, and in one process.

The first three are whole processes with cache folders of their own; every figure is CPU time, user
and system, then wall time. AMP's own programs took 326, 319 and 157 CPU-seconds for its three
problems. The last rows show how time grows with the devices and with the layers. Words after the
command choose the rows whose model or cluster has one of them.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

PROBLEMS = [
    ("gpt2-345m-amp", "amp-homogeneous", 32),
    ("gpt2-345m-amp", "amp-het-cluster", 32),
    ("transgan-amp", "amp-het-model", 64),
    ("llama-3.1-70b", "8x8xH100-SXM5-80GB", 512),
    ("deepseek-v3", "32x8xH100-SXM5-80GB", 1024),
    ("llama-3.1-405b", "1x8xA100-SXM4-80GB", 64),  # nothing fits: the search says what is missing
    ("llama-3.1-405b", "2048x8xH100-SXM5-80GB", 4096),
    *[
        (f"llama-3.1-{size}", f"{nodes}x8xH100-SXM5-80GB", 2048)
        for size in ("8b", "70b", "405b")  # 32, 80 and 126 layers
        for nodes in (32, 128, 512, 2048)
    ],
]
# One search to compile, then one that is timed.
TWICE = """
import sys, time
from apss_jax import search_plans
from apss_jax.cost.compilation import keep_compiled_programs
keep_compiled_programs()
ask = lambda: search_plans(sys.argv[1], sys.argv[2], global_batch=int(sys.argv[3]))
ask()
start = time.process_time(), time.perf_counter()
ask()
print(time.process_time() - start[0], time.perf_counter() - start[1])
"""
Spent = tuple[float, float]  # CPU and wall time in seconds


def homes(cache: str) -> dict[str, str]:
    """Returns an environment whose cache folders are in a folder."""
    own = {
        "XDG_CACHE_HOME": cache,
        "NUMBA_CACHE_DIR": os.path.join(cache, "numba"),
        "NUMBA_OPT": "1",  # as commands set it
    }
    return os.environ | own


def process_s(arguments: list[str], cache: str) -> Spent:
    """Returns what a whole process takes whose caches are in a folder."""
    before, start_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    # A search in which nothing fits ends with code 3.
    subprocess.run([sys.executable, *arguments], env=homes(cache), capture_output=True, check=False)
    wall_s, after = time.perf_counter() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s


def again_s(model: str, cluster: str, batch: int, cache: str) -> Spent:
    """Returns what the second search of a process takes."""
    command = [sys.executable, "-c", TWICE, model, cluster, str(batch)]
    cpu_s, wall_s = subprocess.check_output(command, text=True, env=homes(cache)).split()
    return float(cpu_s), float(wall_s)


def spent(model: str, cluster: str, batch: int, folder: str) -> Iterator[Spent]:
    """Yields what a search takes with nothing compiled, after setting up, once more, and again.

    The folder's `own` holds the caches, as setting up left them in `kept`; at another path programs
    are compiled again.
    """
    asked = ["--model", model, "--cluster", cluster, "--global-batch", str(batch), "--json"]
    command = ["-m", "apss_jax.search", *asked]
    with tempfile.TemporaryDirectory() as empty:
        yield process_s(command, empty)
    own = os.path.join(folder, "own")
    shutil.rmtree(own)
    shutil.copytree(os.path.join(folder, "kept"), own)
    for _ in range(2):
        yield process_s(command, own)
    yield again_s(model, cluster, batch, own)


def main() -> None:
    """Prints a row for each chosen problem."""
    words = sys.argv[1:] or [""]
    heads = "".join(f"{name:>11} CPU  wall" for name in ("cold", "set up", "kept", "again"))
    print(f"{'model':16}{'cluster':24}{'batch':>6}{heads}")
    with tempfile.TemporaryDirectory() as folder:
        own = os.path.join(folder, "own")
        subprocess.run(["make", "compiled"], env=homes(own), capture_output=True, check=True)
        shutil.copytree(own, os.path.join(folder, "kept"))
        for problem in PROBLEMS:
            if not any(word in text for word in words for text in problem[:2]):
                continue
            cells = "".join(
                f"{cpu_s:15.2f}{wall_s:6.2f}" for cpu_s, wall_s in spent(*problem, folder)
            )
            print(f"{problem[0]:16}{problem[1]:24}{problem[2]:6}{cells}", flush=True)


if __name__ == "__main__":
    main()
