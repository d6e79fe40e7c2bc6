"""Writes the graph of an export: its weights, its signatures, what they share."""
