"""The client's side of MQTT without sockets, clocks or tasks: values in, values out."""
