"""The report as one HTML file, or live while runs go on."""
