"""Slack: notices with buttons, `/denv` commands, and who in Slack is who here."""
