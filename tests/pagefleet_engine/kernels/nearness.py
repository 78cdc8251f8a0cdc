"""How near a kernel's result must be to the reference's."""

import torch


def assert_near(found: torch.Tensor, wanted: torch.Tensor, steps: float = 2.0) -> None:
    """Equal but for `steps` rounding steps of 16-bit values, or for 1e-5 in float32."""
    assert found.dtype == wanted.dtype
    tolerance = 1e-5 if wanted.dtype == torch.float32 else steps * torch.finfo(wanted.dtype).eps
    torch.testing.assert_close(found.float(), wanted.float(), rtol=tolerance, atol=tolerance)
