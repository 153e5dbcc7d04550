"""Nodes as processes on this machine: for `millrace cluster`, the demos and tests of real failures.

`nodes` starts and stops the processes, `state` remembers a cluster in its data directory, `supervisor` keeps
one running, `control` is how the commands speak with the supervisor, `logs` keeps what the nodes say.
"""

from millrace.local_cluster.nodes import PROGRAM, SECRET_FILE, LocalCluster, NodeProcess, PortBlock

__all__ = ["PROGRAM", "SECRET_FILE", "LocalCluster", "NodeProcess", "PortBlock"]
