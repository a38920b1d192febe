"""The report: a run's or a sweep's folder as one HTML file that opens anywhere without a network."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it talks of its font cache otherwise
