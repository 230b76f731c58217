"""Reports about any runs: comparisons, pictures and pages, made from run folders only."""
