"""Make speculative decoding pay off: measure a pair, distil the draft, prove the gain, ship it."""

from importlib.metadata import version

__version__ = version("distillspec")
