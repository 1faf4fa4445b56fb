"""Writing what the releases app keeps. Import from the modules: `releases.services.releases`, `.rollouts`, `.dry_runs`."""
