"""Weights on a node: fetched before an engine starts, pinned, resumable, shared by all engines of the node, and told as they come."""
