"""What a search without arguments asks, in one place."""

from typing import Final

MODEL: Final = "llama-3.1-8b"
CLUSTER: Final = "2x8xH100-SXM5-80GB"
GLOBAL_BATCH: Final = "256"
SOLVER: Final = "exact"
TOP: Final = "5"
