"""Curvature of a loss at some parameters: operators, eigenvalues, spectral density and traces, each with a certificate."""

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.ggn import EmpiricalFisher, GaussNewton, fisher, ggn
from trimtab.curvature.hessian import Hessian, hessian
from trimtab.curvature.operator import Operator
from trimtab.curvature.problem import Layer, Problem, problem

__all__ = [
    "CurvatureError",
    "EmpiricalFisher",
    "GaussNewton",
    "Hessian",
    "Layer",
    "Operator",
    "Problem",
    "fisher",
    "ggn",
    "hessian",
    "problem",
]
