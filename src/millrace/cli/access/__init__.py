"""Who is connected, who may do what."""
