"""Stories that run: each starts real processes, shows what happens, and ends in a check of what it proved."""
