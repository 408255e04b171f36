"""Make captures: presets, command lines, runs under nsys, sweeps."""
