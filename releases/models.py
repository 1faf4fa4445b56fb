"""Tables of the releases app."""
