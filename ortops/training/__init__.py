"""Training on plain ONNX Runtime: gradients as part of the graph."""

from ortops.training.backward import gradients

__all__ = ["gradients"]
