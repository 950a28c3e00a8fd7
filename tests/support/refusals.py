"""What an op raises when it refuses its arguments."""

import torch
from torch.torch_version import TorchVersion

# torch 2.13 passes an op's exception on as it is; in torch 2.15 those of the stable ABI
# become RuntimeErrors.
REFUSED = ValueError if TorchVersion(torch.__version__) < (2, 14) else (ValueError, RuntimeError)
