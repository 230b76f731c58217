"""What records show: tables, figures and pages, from run folders and nothing else."""
