"""What all tests share."""

import gc


def pytest_collection_finish():
    """Nothing that is loaded by now is ever garbage, and some libraries ask for a full collection at every call."""
    gc.collect()
    gc.freeze()
