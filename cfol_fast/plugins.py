"""Methods, data sets and models of other packages: what they register is known to the command line.

A package names a module in the entry point group `cfol_fast.plugins`; importing it calls `methods.register`,
`data.register` or
`models.register`. A program of one's own imports its module itself.
"""

from __future__ import annotations

from cfol_fast.errors import InputError, one_line

GROUP = "cfol_fast.plugins"


def load_plugins() -> list[str]:
    """Imports what is installed in the group, and returns the names."""
    # Most of the time of `cfol-fast --help`, which needs none of it.
    from importlib.metadata import entry_points

    names = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load()
        # The module is somebody else's and may raise anything.
        except Exception as error:
            raise InputError(
                f"the plugin {entry.name} ({entry.value}) cannot be imported: {one_line(error)}; mend or"
                " uninstall it"
            ) from error
        names.append(entry.name)
    return names
