"""What people have: tokens, roles and sessions. The same for pages and API; each change is in the journal with itself."""
