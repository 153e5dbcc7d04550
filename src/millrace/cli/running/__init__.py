"""Start a node, and set up what it, this machine and its terminal need."""
