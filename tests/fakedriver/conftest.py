"""The fixture of this directory's own tests."""

from tests.fakedriver.fixtures import fake_driver

__all__ = ["fake_driver"]
