"""Calibration: corrections of AP2 that a few inputs and draws tell, for deep networks."""

from momentprop.calibration.calibrating import calibrate as calibrate
from momentprop.calibration.calibration import Calibration as Calibration
from momentprop.calibration.calibration import CalibrationWarning as CalibrationWarning
from momentprop.calibration.wrapper import Calibrated as Calibrated
from momentprop.calibration.wrapper import calibrated as calibrated
