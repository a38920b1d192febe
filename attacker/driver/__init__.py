"""Drives an attack: live, resumed or offline it follows a transcript, then recovers."""
