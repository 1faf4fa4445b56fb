"""Reading what the releases app keeps. Import from the modules: `releases.selectors.releases`, `.stages`, `.rollouts`."""
