"""Bugs that can be planted in the primary-backup machine by name, one at a time."""

PAIR_MUTATIONS: dict[str, str] = {
    "ack_before_backup": "the primary acknowledges before the backup has it, though it is in sync",
    "alone_before_recorded": "the primary goes on alone before the backup is recorded as out of sync",
    "alone_while_recording": "the primary goes on alone until it hears that the backup is in sync again",
    "sync_claimed_early": "the backup counts as in sync before it has everything",
    "promoted_out_of_sync": "a backup that lacks acknowledged messages takes over",
    "lease_ignored": "a primary serves on without a lease",
    "promoted_too_early": "a backup takes over at the first miss, while the primary's lease runs",
    "epoch_kept_at_restart": "a primary that restarts goes on in its old epoch",
    "stored_dropped_at_promotion": "what was stored and not delivered is dropped by the new primary",
}
