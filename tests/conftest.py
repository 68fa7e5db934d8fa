"""Shared by all tests: the seed, float64 on JAX, and the rows of the contract table."""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Halves the compiling, in the processes that tests start as well.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import keras
import pytest

if keras.backend.backend() == "jax":
    import jax

    jax.config.update("jax_enable_x64", True)
elif keras.backend.backend() == "torch":
    import torch

    torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other

# No collection of garbage has to look at the libraries.
gc.collect()
gc.freeze()


@pytest.fixture(autouse=True)
def seed():
    """Weights are drawn anew, and alike in every run; no expected value depends on it."""
    keras.utils.set_random_seed(20141409)


@pytest.fixture(autouse=True)
def float32_policy():
    """A test that sets the global policy leaves the next one as it was."""
    yield
    keras.config.set_dtype_policy("float32")
    # Without collecting garbage after each test: with all that JAX has compiled, it takes long.
    keras.backend.clear_session(free_memory=False)


@pytest.fixture
def op_by_op():
    """JAX runs a loop operation by operation instead of compiling it anew at each call.

    For tests of values at small sizes; test_compilation checks that compiled is equal.
    """
    if keras.backend.backend() != "jax":
        yield
        return
    with jax.disable_jit():
        yield
