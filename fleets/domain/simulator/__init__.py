"""A stage simulated by discrete events: the router's own policy, the simulated engine's scheduling, the roofline's times."""
