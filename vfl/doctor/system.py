"""What of `cafe` works on this system: its kind, and which extras are installed."""

import platform
import sys
from importlib.util import find_spec

from vfl.doctor.findings import Sheet

EXTRAS = {
    "ui": ("starlette", "the live page"),
    "tensorboard": ("tensorboard", "events/ in a run's folder"),
    "vision": ("torchvision", "MNIST and CIFAR-10 from torchvision's own files"),
    "tables": ("pyarrow", "CSV and Parquet files"),
    "dp": ("opacus", "the accountant of the defence dp"),
    "psi": ("private_set_intersection", "private set intersection"),
    "ray": ("ray", "sweeps and attacks on a Ray cluster"),
    "audit": ("fpdf", "audit.pdf"),
    "mlflow": ("mlflow", "cafe export --to mlflow"),
}
"""Of each extra a module that it brings, and what cannot be had without it."""


def check_system(here: Sheet, system: str | None = None) -> None:
    """Say what cannot work on this kind of system; Linux, also below Windows (WSL 2), is what is tested."""
    name = system or sys.platform
    if name == "linux":
        inside = " (in Windows: WSL)" if "microsoft" in platform.release().lower() else ""
        here.ok("system", f"Linux on {platform.machine()}{inside}")
    elif name == "darwin":
        here.warn(
            "system",
            "macOS is not tested: `cafe run` and `vfl.simulate` should work; the tests and benchmarks of several "
            "hosts (network namespaces) and Docker's host network cannot",
        )
    else:
        here.fail(
            "system",
            f"{name}: processes are started from a fork server, which this system has not: `cafe run`, `serve` and "
            "`work` cannot work; use WSL 2 or Docker. Reports can be read and `vfl.load` works",
        )


def check_extras(here: Sheet) -> None:
    """Say which extras are installed, and what cannot be had without the others."""
    lacking = {extra: what for extra, (module, what) in EXTRAS.items() if find_spec(module) is None}
    there = [extra for extra in EXTRAS if extra not in lacking]
    text = f"installed: {', '.join(there) or 'none'}"
    if lacking:
        without = "; ".join(f"{extra} ({what})" for extra, what in lacking.items())
        text += f". Others, by pip install 'cafe-vfl[NAME]': {without}"
    here.ok("extras", text)
