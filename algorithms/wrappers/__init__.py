"""What any agent can be wrapped in: averaged parameters, normalized observations, a memory."""
