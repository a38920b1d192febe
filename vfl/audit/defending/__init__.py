"""Defences, tried for real against the attackers that learned too much, and which of them to recommend."""
