"""The reward of grpo.yaml."""


def correct(response, solution=""):
    """1 if the answer contains the solution."""
    return float(str(solution) in response)
