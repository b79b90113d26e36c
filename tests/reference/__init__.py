"""Slow plain twins of the native ops: written from the formulas, independent of csrc/.

One module per family of ops.
"""
