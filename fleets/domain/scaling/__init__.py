"""How many replicas and units the traffic asks for now, decided by pure functions; and when one that goes has finished."""
