"""Addresses that people give: what is none ends with a sentence that has it."""

import pytest

from vfl.cli.options import check_addresses
from vfl.cluster import check_cluster
from vfl.errors import UserError

STRANGE = ["192.0.2.10:²", "192.0.2.10:７０００", "192.0.2.10:٧٠٠٠", "192.0.2.10:65536", "192.0.2.10:", ":7000"]
"""The first three have ports that Python calls digits; of those int() reads all but the first."""


@pytest.mark.parametrize("address", STRANGE)
def test_a_port_is_a_number_in_ascii_digits(address):
    with pytest.raises(UserError, match=rf"^--listen {address}: expected HOST:PORT"):
        check_addresses({"--listen": address})
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=rf"^--engine: '{address}' is not HOST:PORT or auto"):
        check_cluster(address, "--engine")


@pytest.mark.parametrize("address", ["192.0.2.10:7000", "[2001:db8::1]:0", "coordinator.example:65535"])
def test_addresses_are_taken(address):
    check_addresses({"--listen": address})
