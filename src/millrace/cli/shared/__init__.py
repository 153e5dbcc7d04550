"""What the commands share: options, addresses, tables."""
