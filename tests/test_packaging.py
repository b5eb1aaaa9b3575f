"""What is installed is what is in the checkout: a wheel leaves no module or data file behind."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from import_graph import PACKAGE, ROOT


def _build_wheel(folder: Path) -> Path:
    """Returns a wheel built from a copy, so that the checkout gets no build folder."""
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "checkpoints", folder / "checkpoints")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", "wheels", "."]
    subprocess.run(build, cwd=folder, check=True)
    (wheel,) = (folder / "wheels").glob("*.whl")
    return wheel


@pytest.mark.slow
def test_a_wheel_holds_every_file(tmp_path: Path) -> None:
    """Every module and data file of the package is in the wheel, and so is the network."""
    packed = set(zipfile.ZipFile(_build_wheel(tmp_path)).namelist())
    files = {f.relative_to(ROOT) for f in (ROOT / PACKAGE).rglob("*") if f.is_file()}
    expected = {f.as_posix() for f in files if "__pycache__" not in f.parts}
    assert expected
    assert expected - packed == set()
    weights = "data/share/apss_jax/checkpoints/dpsn/weights.safetensors"
    assert any(name.endswith(weights) for name in packed)
