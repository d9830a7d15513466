"""From a float model to a converted one, stage by stage; and the paper's tables."""
