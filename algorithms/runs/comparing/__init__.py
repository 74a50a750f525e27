"""Comparing runs: what differs between them, how they learned, which one is better, and how certain this is."""

from algorithms.runs.comparing.comparison import Comparison, compare
from algorithms.runs.comparing.page import write_page

__all__ = ["Comparison", "compare", "write_page"]
