"""Scores answers of the samples beside this file."""


def last_number(response, reward_model):
    words = response.split()
    return float(bool(words) and words[-1] == reward_model["ground_truth"])
