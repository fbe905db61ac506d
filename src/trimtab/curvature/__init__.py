"""Curvature of a loss at some parameters: operators, eigenvalues, spectral density and traces, each with a certificate.

op = trimtab.curvature.hessian(setup, mode="train")
print(trimtab.curvature.eigenvalues(op, k=5, tol=1e-3))
"""

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.conditioning import Conditioning, conditioning
from trimtab.curvature.density import Density, density
from trimtab.curvature.ggn import EmpiricalFisher, GaussNewton, fisher, ggn
from trimtab.curvature.ggn_trace import GaussNewtonTrace, ggn_trace
from trimtab.curvature.hessian import Hessian, hessian
from trimtab.curvature.lanczos import Eigenvalues, eigenvalues
from trimtab.curvature.operator import Operator
from trimtab.curvature.problem import Layer, Problem, problem
from trimtab.curvature.scale_free import ScaleFreeSharpness, scale_free_sharpness
from trimtab.curvature.trace import Trace, trace

__all__ = [
    "Conditioning",
    "CurvatureError",
    "Density",
    "Eigenvalues",
    "EmpiricalFisher",
    "GaussNewton",
    "GaussNewtonTrace",
    "Hessian",
    "Layer",
    "Operator",
    "Problem",
    "ScaleFreeSharpness",
    "Trace",
    "conditioning",
    "density",
    "eigenvalues",
    "fisher",
    "ggn",
    "ggn_trace",
    "hessian",
    "problem",
    "scale_free_sharpness",
    "trace",
]
