"""Figures for Prometheus: `table` says what each is, `collect` reads the node, `text` writes it down."""
