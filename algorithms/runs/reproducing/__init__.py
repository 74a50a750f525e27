"""Reproducing a table of results: which runs it has, running them, keeping what they reached, and writing it down.

The rows are data, in a YAML file. Every row has a small JSON file with its result. Tables, pictures and a page are
written from these files, and from nothing else.
"""

from algorithms.runs.reproducing.results import Result, Results
from algorithms.runs.reproducing.rows import Group, Row, read_rows
from algorithms.runs.reproducing.writing import write_all

__all__ = ["Group", "Result", "Results", "Row", "read_rows", "write_all"]
