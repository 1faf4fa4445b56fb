"""The product's settings on servers of this test run."""

from tests.servers import start_servers

start_servers()

from denvweb.settings import *  # noqa: E402, F403  (the settings read the environment that start_servers fills)

# Argon2 is slow on purpose; logins of tests need not be.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

# Tests of other things than access act as people who may do everything; those of access set it back.
DEFAULT_ROLE = "admin"
