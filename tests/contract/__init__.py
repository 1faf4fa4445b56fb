"""The API against its own OpenAPI document, with Schemathesis; run by `make test-contract`, and not part of `make test`."""
