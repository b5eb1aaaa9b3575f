"""Unit factors: SI inside, other units only in what people read or write.

`4 * units.GIB` is a size in bytes, `step_time_s / units.MS` a time in milliseconds.
"""

from typing import Final

# Sizes, in bytes. Vendors state capacities in powers of ten, allocators count powers of two.
KB: Final = 1e3
MB: Final = 1e6
GB: Final = 1e9
TB: Final = 1e12
KIB: Final = 2.0**10
MIB: Final = 2.0**20
GIB: Final = 2.0**30
TIB: Final = 2.0**40

# Link rates are sold in bits per second; the factor is in bytes.
GBIT: Final = 1e9 / 8

# Times, in seconds.
US: Final = 1e-6
MS: Final = 1e-3
HOUR: Final = 3600.0

# Work, in floating-point operations.
GFLOP: Final = 1e9
TFLOP: Final = 1e12
PFLOP: Final = 1e15

# Parts of one.
PERCENT: Final = 1e-2
