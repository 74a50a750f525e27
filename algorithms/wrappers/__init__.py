"""Wrappers, which give any agent something more: averaged parameters, normalized observations, or a memory."""
