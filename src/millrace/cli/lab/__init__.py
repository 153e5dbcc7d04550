"""Demos, benchmarks and the simulator."""
