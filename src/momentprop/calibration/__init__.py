"""Calibration: corrections of AP2 for deep networks, fitted to a few inputs and draws."""

from momentprop.calibration.calibrate import calibrate as calibrate
from momentprop.calibration.calibrated_module import Calibrated as Calibrated
from momentprop.calibration.calibrated_module import calibrated as calibrated
from momentprop.calibration.calibration import Calibration as Calibration
from momentprop.calibration.calibration import CalibrationWarning as CalibrationWarning
