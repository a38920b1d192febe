"""Attacks of a malicious coordinator, which chooses batches and parameters so that samples come apart."""
