"""Rules that make of a model one that computes the same with less work."""

from ortops.rewrite.broadcasts import remove_broadcasts

__all__ = ["remove_broadcasts"]
