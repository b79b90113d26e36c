"""Attempts to break the program: bad options, edited and damaged files, failing disks, kills.

`make hostile MINUTES=30` goes on longer.
"""
