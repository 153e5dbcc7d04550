"""Streams, consumer groups and pipelines."""
