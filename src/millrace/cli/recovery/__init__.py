"""Look at a data directory, back up and restore a cluster, move streams as files."""
