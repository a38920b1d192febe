"""What every party agrees on: configuration, models, partitions, data sets, scoring, and the `cafe` command.

For notebooks and scripts: `vfl.run`, `vfl.simulate`, `vfl.attack` and `vfl.load`; docs/python.md.
"""

TYPE_CHECKING = False  # as typing has it, which a file of the user's may be called
if TYPE_CHECKING:
    from vfl.api import Images, Run, Simulation, attack, load, run, simulate

__all__ = ["Images", "Run", "Simulation", "attack", "load", "run", "simulate"]


def __getattr__(name: str) -> object:
    """Import the API when it is first used: most programs that import this package want one of its modules only."""
    if name not in __all__:
        raise AttributeError(f"module 'vfl' has no attribute {name!r}")
    from vfl import api

    return getattr(api, name)
