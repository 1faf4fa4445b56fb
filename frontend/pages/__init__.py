"""The pages: one module a page, each a plain view over selectors."""
