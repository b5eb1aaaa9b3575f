"""From a question to plans: candidates, devices, cuts, costs, ranking, words."""
