"""Disks of real nodes that lose what was not synced, or that stand still."""
