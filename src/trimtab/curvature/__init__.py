"""Curvature of a loss at some parameters: operators, eigenvalues, spectral density and traces, each with a certificate."""

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.problem import Layer, Problem, problem

__all__ = ["CurvatureError", "Layer", "Problem", "problem"]
