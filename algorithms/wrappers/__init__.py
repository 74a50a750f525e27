"""Wrappers, which add something to any agent: averaged parameters, normalized observations, or a memory."""
