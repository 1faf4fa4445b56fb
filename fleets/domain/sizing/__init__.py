"""How many of what: queueing and the roofline propose a shape, the simulator checks it."""
