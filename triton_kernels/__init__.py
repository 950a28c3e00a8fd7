"""The Triton kernels, one module per op. Installed as ``structout.triton_kernels``."""
