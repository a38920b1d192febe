"""What importing an attack brings with it: an attack is maths, and needs neither the network nor a cluster."""

import subprocess
import sys

import pytest

from attacker.interface import attacks

MODULES = sorted({attacks.find(name).__module__ for name in attacks.names()})


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("attacker.")])
def test_importing_an_attack_loads_neither_grpc_nor_tls_nor_ray(module):
    look = f"import sys, {module}; print([name for name in ('grpc', 'cryptography', 'ray') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
