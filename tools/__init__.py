"""The maintainers' commands: what is not part of the package.

Each is run from the repository: `python -m tools.NAME`.
"""
