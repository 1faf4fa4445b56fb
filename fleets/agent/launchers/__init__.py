"""How ranks become processes."""
