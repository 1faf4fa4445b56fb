"""Tables of the fleets app."""
