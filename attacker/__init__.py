"""Attacks on what the coordinator sees, and the interface that they fill."""
