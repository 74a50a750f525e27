"""Comparing runs: what differs between them, how they learned, and which one is better with what certainty."""

from algorithms.runs.comparing.comparison import Comparison, compare
from algorithms.runs.comparing.page import write_page

__all__ = ["Comparison", "compare", "write_page"]
