"""Tables of the metrics app."""
