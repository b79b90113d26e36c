"""The command line: one module per command, on top of everything else."""
