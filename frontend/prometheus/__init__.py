"""The control plane's own figures for Prometheus."""
