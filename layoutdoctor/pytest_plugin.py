"""The pytest plugin: a fixture and a marker that hold a model to its layouts."""

from __future__ import annotations
