"""How a client reaches a broker: addresses, TCP, TLS and WebSocket."""
