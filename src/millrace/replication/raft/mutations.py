"""Bugs that can be planted in a machine by name, one at a time, to see whether the checkers find them.

A production machine is built with no names. Each line: what goes wrong, and where such a bug was published,
or which text gives the rule that it breaks; nothing where it is a construction of ours.
"""

MUTATIONS: dict[str, str] = {
    # what must be on disk before it is said
    "ack_before_fsync": "a follower answers an append before its sync (NATS JetStream, Jepsen 2025)",
    "leader_counts_unsynced_self": "the leader counts its own copy before its own sync (rule: thesis 10.2.1)",
    "vote_not_persisted": "a vote is forgotten by a restart",
    "hard_state_not_awaited": "votes and answers leave while the term is still being synced",
    "durable_ignores_truncation": "a sync that finishes late makes truncated entries count as safe",
    # counting
    "commit_before_majority": "one replica less than a majority commits (Kafka's default; Jepsen 2013)",
    "commit_prior_term": "entries of an earlier term are committed by counting (figure 8 of the paper)",
    "match_on_send": "an append counts as stored when it is sent",
    "learner_counts": "a learner counts in majorities",
    "removed_still_counts": "a removed replica's acknowledgements still count",
    "quorum_shrinks_on_link_closed": "an unreachable voter is left out of the majority [A6]",
    "stale_reply_accepted": "an append's answer from an earlier term counts",
    # elections
    "vote_without_log_check": "a vote is given whatever the candidate's log lacks (Kafka before 0.11)",
    "vote_twice": "a second candidate gets a vote in the same term",
    "vote_counted_twice": "a duplicated vote message counts again",
    "stale_vote_counted": "a vote of an earlier term counts in this one",
    "pre_vote_counts_as_vote": "a late answer to the pre-vote counts as a vote",
    "vote_ignores_unpersisted_log": "a candidate's log is compared with the synced part of one's own",
    "pre_vote_raises_term": "asking around raises the term, so a cut-off replica deposes the leader on return"
    " (rule: thesis 9.6)",
    "higher_term_ignored": "a leader that learns of a higher term adopts it and stays leader",
    "stale_leader_accepted": "an append of an earlier term is taken",
    "damage_ignored": "a replica that lost acknowledged entries votes at once (FAST 2018)",
    # log repair
    "truncate_on_stale_append": "a late, shorter append cuts the log after it",
    "no_prev_term_check": "the entry before an append is compared by index only",
    "reply_last_index": "a follower reports its last index as matched without comparing",
    "follower_commit_unclipped": "a follower commits to its own last index, matched or not, on an append",
    "heartbeat_commit_unclipped": "a heartbeat carries a commit index above what the follower matched",
    "config_not_rolled_back": "a configuration outlives the entry that set it",
    # membership
    "change_before_own_term_commit": "a new leader changes the membership before its own entry is committed"
    " (Ongaro's correction of single-server changes, 2015)",
    "change_while_pending": "a second change starts before the first is committed",
    # reads
    "read_before_noop": "a new leader serves reads before it knows its commit index (rule: thesis 6.4)",
    "read_without_round": "a leader serves reads without asking anyone (etcd and Consul, Jepsen 2014)",
    "read_counts_old_round": "answers to an earlier heartbeat round confirm a read",
    # snapshots and transfer
    "snapshot_over_newer_log": "a snapshot older than the log is installed",
    "snapshot_keeps_tail": "entries after an installed snapshot survive and count as matched",
    "transfer_while_behind": "leadership goes to a follower that lacks entries, and its election skips the"
    " log check",
}
