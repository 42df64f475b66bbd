"""Surfaces: the ways in. Each is derived from `operations`, or tested against it."""
