"""The report as one HTML file, or live while runs train."""
