"""The images inside the package: `fashion_mini.npz`, its licence, and the script that made it."""
