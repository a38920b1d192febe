"""What every party agrees on: configuration, models, partitions, data sets, scoring, and the `cafe` command.

For notebooks and scripts: `vfl.run`, `vfl.simulate`, `vfl.attack`, `vfl.load` and `vfl.record`; docs/python.md.
"""

import os

# TLS 1.3 or nothing. gRPC has no setting for the least version; but it reads this one, of TLS 1.2's ciphers alone, when
# it is first imported, and one that wants a key shared beforehand, which no party has, leaves none of them.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES256-CBC-SHA"

TYPE_CHECKING = False  # as typing has it, which a file of the user's may be called
if TYPE_CHECKING:
    from vfl.api import Images, Run, Simulation, attack, load, record, run, simulate

__all__ = ["Images", "Run", "Simulation", "attack", "load", "record", "run", "simulate"]


def __getattr__(name: str) -> object:
    """Import the API when it is first used: most programs that import this package want one of its modules only."""
    if name not in __all__:
        raise AttributeError(f"module 'vfl' has no attribute {name!r}")
    from vfl import api

    return getattr(api, name)
