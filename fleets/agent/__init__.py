"""The agent: makes its node run what the control plane's snapshot says, and says how it went."""
