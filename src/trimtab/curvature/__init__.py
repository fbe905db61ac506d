"""Curvature of a loss at some parameters: operators, eigenvalues, spectral density and traces, each with a certificate.

<<<<<<< HEAD
Beside them the loss itself: on lines and planes, along the step that training takes, and against what the optimizer bears.
"""

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.batchnorm_identity import BatchNormIdentity, batchnorm_identity
from trimtab.curvature.covariate_shift import CovariateShift, covariate_shift
from trimtab.curvature.directions import (
    Directions,
    between,
    given_directions,
    gradient_direction,
    random_directions,
    trajectory_directions,
)
=======
op = trimtab.curvature.hessian(setup, mode="train")
print(trimtab.curvature.eigenvalues(op, k=5, tol=1e-3))
"""

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.conditioning import Conditioning, conditioning
from trimtab.curvature.density import Density, density
>>>>>>> curv
from trimtab.curvature.ggn import EmpiricalFisher, GaussNewton, fisher, ggn
from trimtab.curvature.ggn_trace import GaussNewtonTrace, ggn_trace
from trimtab.curvature.hessian import Hessian, hessian
<<<<<<< HEAD
from trimtab.curvature.normalized_weights import ScaleInvariance, scale_invariance
=======
from trimtab.curvature.lanczos import Eigenvalues, eigenvalues
>>>>>>> curv
from trimtab.curvature.operator import Operator
from trimtab.curvature.preconditioner import PreconditionedHessian, preconditioned
from trimtab.curvature.problem import Layer, Problem, problem
<<<<<<< HEAD
from trimtab.curvature.real_step import real_step
from trimtab.curvature.sharpness import Sharpness, sharpness
from trimtab.curvature.smoothness import Smoothness, smoothness
from trimtab.curvature.stability import StabilityLimit, stability_limit
from trimtab.curvature.surface import Surface, surface

__all__ = [
    "BatchNormIdentity",
    "CovariateShift",
    "CurvatureError",
    "Directions",
=======
from trimtab.curvature.scale_free import ScaleFreeSharpness, scale_free_sharpness
from trimtab.curvature.trace import Trace, trace

__all__ = [
    "Conditioning",
    "CurvatureError",
    "Density",
    "Eigenvalues",
>>>>>>> curv
    "EmpiricalFisher",
    "GaussNewton",
    "GaussNewtonTrace",
    "Hessian",
    "Layer",
    "Operator",
    "PreconditionedHessian",
    "Problem",
<<<<<<< HEAD
    "ScaleInvariance",
    "Sharpness",
    "Smoothness",
    "StabilityLimit",
    "Surface",
    "batchnorm_identity",
    "between",
    "covariate_shift",
    "fisher",
    "ggn",
    "given_directions",
    "gradient_direction",
=======
    "ScaleFreeSharpness",
    "Trace",
    "conditioning",
    "density",
    "eigenvalues",
    "fisher",
    "ggn",
    "ggn_trace",
>>>>>>> curv
    "hessian",
    "preconditioned",
    "problem",
<<<<<<< HEAD
    "random_directions",
    "real_step",
    "scale_invariance",
    "sharpness",
    "smoothness",
    "stability_limit",
    "surface",
    "trajectory_directions",
=======
    "scale_free_sharpness",
    "trace",
>>>>>>> curv
]
