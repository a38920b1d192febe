"""Certificates: what recovered samples are held against, so that they are sure without the truth."""

from attacker.certificate.evidence import Evidence

__all__ = ["Evidence"]
