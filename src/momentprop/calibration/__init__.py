"""Calibration: corrections of AP2 that a few inputs and draws tell, for deep networks."""

from momentprop.calibration.calibrate import calibrate as calibrate
from momentprop.calibration.calibrated_module import Calibrated as Calibrated
from momentprop.calibration.calibrated_module import calibrated as calibrated
from momentprop.calibration.calibration import Calibration as Calibration
from momentprop.calibration.calibration import CalibrationWarning as CalibrationWarning
