"""Bytes to fewer bytes, and back, on a device."""
