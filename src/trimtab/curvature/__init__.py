"""Curvature of a loss at some parameters: operators, eigenvalues, spectral density and traces, each with a certificate.

op = trimtab.curvature.hessian(setup, mode="train")
print(trimtab.curvature.eigenvalues(op, k=5, tol=1e-3))

Beside them the loss itself: on lines and planes, along the step that training takes, and against what the optimizer bears.
"""

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.batchnorm_identity import BatchNormIdentity, batchnorm_identity
from trimtab.curvature.conditioning import Conditioning, conditioning
from trimtab.curvature.covariate_shift import CovariateShift, covariate_shift
from trimtab.curvature.density import Density, density
from trimtab.curvature.directions import (
    Directions,
    between,
    given_directions,
    gradient_direction,
    random_directions,
    trajectory_directions,
)
from trimtab.curvature.ggn import EmpiricalFisher, GaussNewton, fisher, ggn
from trimtab.curvature.ggn_trace import GaussNewtonTrace, ggn_trace
from trimtab.curvature.hessian import Hessian, hessian
from trimtab.curvature.lanczos import Eigenvalues, eigenvalues
from trimtab.curvature.normalized_weights import ScaleInvariance, scale_invariance
from trimtab.curvature.operator import Operator
from trimtab.curvature.preconditioner import PreconditionedHessian, preconditioned
from trimtab.curvature.problem import Layer, Problem, problem
from trimtab.curvature.real_step import real_step
from trimtab.curvature.scale_free import ScaleFreeSharpness, scale_free_sharpness
from trimtab.curvature.sharpness import Sharpness, sharpness
from trimtab.curvature.smoothness import Smoothness, smoothness
from trimtab.curvature.stability import StabilityLimit, stability_limit
from trimtab.curvature.surface import Surface, surface
from trimtab.curvature.trace import Trace, trace

__all__ = [
    "BatchNormIdentity",
    "Conditioning",
    "CovariateShift",
    "CurvatureError",
    "Density",
    "Directions",
    "Eigenvalues",
    "EmpiricalFisher",
    "GaussNewton",
    "GaussNewtonTrace",
    "Hessian",
    "Layer",
    "Operator",
    "PreconditionedHessian",
    "Problem",
    "ScaleFreeSharpness",
    "ScaleInvariance",
    "Sharpness",
    "Smoothness",
    "StabilityLimit",
    "Surface",
    "Trace",
    "batchnorm_identity",
    "between",
    "conditioning",
    "covariate_shift",
    "density",
    "eigenvalues",
    "fisher",
    "ggn",
    "ggn_trace",
    "given_directions",
    "gradient_direction",
    "hessian",
    "preconditioned",
    "problem",
    "random_directions",
    "real_step",
    "scale_free_sharpness",
    "scale_invariance",
    "sharpness",
    "smoothness",
    "stability_limit",
    "surface",
    "trace",
    "trajectory_directions",
]
