"""Campaigns against real processes: clusters on this machine, real faults, clients whose history is judged.

Each campaign is a command (`python -m millrace.lab.campaign NAME`) that forms a cluster, puts load on it,
does the same kind of harm many times, and judges at the end what the clients were told against what every
node's log holds. It prints one line per fault and a table, and exits with 1 where a promise was broken."""
