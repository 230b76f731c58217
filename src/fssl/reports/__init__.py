"""Reports about any runs: comparisons, pictures and pages, from run folders and nothing else."""
