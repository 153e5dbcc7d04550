"""The queue of a topic, for every door: what may be asked, of whom, and the answers."""
