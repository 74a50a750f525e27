"""Training runs as the host sees them: settings, folders, progress, signals."""
