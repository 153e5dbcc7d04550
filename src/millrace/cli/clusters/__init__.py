"""A cluster on this machine, and what any cluster is doing."""
