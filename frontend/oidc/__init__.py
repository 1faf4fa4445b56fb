"""Signing in through an OpenID Connect provider: the code flow with PKCE, and who of its people is who here."""
