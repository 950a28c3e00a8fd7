"""The Triton kernels, one module per op. Installed as ``structout.triton_kernels``."""

import torch  # noqa: F401 - in front of the modules: see structout.torch_import
