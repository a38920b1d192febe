"""What is installed here: results name it, and `cafe doctor` compares it between machines."""

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """Return the versions of this project, of Python, and of what computes and talks."""
    return {"cafe-vfl": version("cafe-vfl"), "python": platform.python_version()} | {
        name: version(name) for name in ("torch", "grpcio")
    }
