"""Steps without Python: traced, cut at the exchange, compiled, and on a GPU captured in CUDA graphs."""

from forde.compile.step import CompiledStep

__all__ = ["CompiledStep"]
