"""Publish, subscribe, and find out where a message goes."""
