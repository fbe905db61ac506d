"""How a net's sizes change with its width over the first steps of training."""

from trimtab.propagation.width.coordinate import CoordinateCheck, SiteScaling, coordinate_check

__all__ = ["CoordinateCheck", "SiteScaling", "coordinate_check"]
