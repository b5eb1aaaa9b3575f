"""What commands without arguments ask, in one place."""

from typing import Final

MODEL: Final = "llama-3.1-8b"
CLUSTER: Final = "2x8xH100-SXM5-80GB"
GLOBAL_BATCH: Final = "256"
SOLVER: Final = "dpsn"
TOP: Final = "5"
TRAIN_OUT: Final = "out/dpsn"
TRAIN_STEPS: Final = "8000"
