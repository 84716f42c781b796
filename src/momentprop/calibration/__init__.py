"""Calibration: corrections of AP2 for deep networks, fitted to a few inputs and draws."""

from momentprop.calibration.calibrate import calibrate
from momentprop.calibration.calibrated_module import Calibrated, calibrated
from momentprop.calibration.calibration import Calibration, CalibrationWarning

__all__ = ["Calibrated", "Calibration", "CalibrationWarning", "calibrate", "calibrated"]
