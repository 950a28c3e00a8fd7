"""Triton kernels, one stem per op. Installed as ``structout.triton_kernels``, never at top level."""
