import pytest

pytest.register_assert_rewrite("tests.integration.engine_contract", "tests.integration.engine_peers")
