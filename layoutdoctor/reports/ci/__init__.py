"""Reports for CI servers: SARIF and JUnit."""

from __future__ import annotations
