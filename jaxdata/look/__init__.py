"""For people: what a dataset, a plan or a run looks like."""
