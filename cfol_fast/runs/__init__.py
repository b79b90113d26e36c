"""What a run is: its configuration, its folder and files, its identity, its records.

Nothing here trains or draws.
"""
