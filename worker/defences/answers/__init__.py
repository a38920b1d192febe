"""Defences of the label holder's answers: what each worker may learn of the labels."""
