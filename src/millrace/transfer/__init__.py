"""Messages between a cluster and files: exports, imports, backups. See `docs/how-to/recovery.md`.

Everything goes through the HTTP interface of the nodes, as any other program would do it.
"""
