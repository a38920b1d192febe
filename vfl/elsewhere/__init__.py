"""Gradients from elsewhere: what somebody's own training loop sends to its server, written as a transcript."""
